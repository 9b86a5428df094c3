"""A server as an engine that scores, for `ScoringTeacher`: what it said is kept, and who said it is watched.

The weights behind an address can be others after a restart. So the server is asked for its probe before it
scores anything in a step, after every answer that did not come at once, and when it names its weights anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

from turnpoint.errors import EngineError
from turnpoint.protocols import Capabilities, Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.teachers.probe import Probe
from turnpoint.teachers.server import Server
from turnpoint.types import Floats, TokenIds

_Key: TypeAlias = tuple[bytes, int]

_PROBE: _Key = (b"", 0)  # no request has it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """What a server was found to be: its name, how much it takes, and its answer about `ids`."""

    name: str
    context_length: int  # tokens of a prompt with its rollout
    ids: TokenIds
    probe: Probe


class ServerEngine:
    """Scores through `server` at temperature 1; keeps what it said of `cache_tokens` tokens within a step."""

    def __init__(self, server: Server, known: Known, *, cache_tokens: int = 1 << 20) -> None:
        self._server = server
        self._known = known
        self._cache = _Cache(cache_tokens)
        self._asking: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._trusted = False
        self._version = known.probe.version

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can serve."""
        return Capabilities(
            name=self._known.name,
            context_length=self._known.context_length,
            entropy=False,
            max_top_k=0,
            score_temperature=False,
            prefix_cache=self._server.wire.prefix_cache,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        """Raises EngineError: a teacher behind a server only scores."""
        raise EngineError(f"request {request.id}: {self._known.name} is here to score, not to generate")

    async def score(self, request: ScoreRequest) -> Scores:
        """Returns scores of given tokens; of two equal requests the second waits for the first's answer.

        Raises EngineError naming the server when it cannot answer, answers wrongly or has other weights.
        """
        self._check(request)
        key = (request.token_ids.tobytes(), request.start)
        async with self._alone(key):
            logprobs = self._cache.get(key)
            if logprobs is None:
                logprobs = await self._ask(request.token_ids.tolist(), request.start)
                self._cache.put(key, logprobs)
        return Scores(logprobs=logprobs, policy_version=0)

    def forget(self) -> None:
        """Drops all answers; who the server is will be asked before the next one."""
        self._cache = _Cache(self._cache.most)
        self._trusted = False

    def _check(self, request: ScoreRequest) -> None:
        tokens, longest = len(request.token_ids), self._known.context_length
        if request.temperature != 1:
            raise EngineError(
                f"request {request.id}: {self._known.name} scores at temperature 1 alone, not at "
                f"{request.temperature:g}"
            )
        if request.entropy or request.top_k:
            raise EngineError(f"request {request.id}: {self._known.name} gives given tokens' laws alone")
        if not 1 <= request.start < tokens <= longest:
            raise EngineError(
                f"request {request.id}: {tokens} tokens from {request.start} on; {self._known.name} takes up "
                f"to {longest}, scored from 1 on"
            )

    def _alone(self, key: _Key) -> asyncio.Lock:
        """Returns the lock that all have who ask for `key` now; it is gone when nobody does."""
        return self._asking.setdefault(key, asyncio.Lock())

    async def _ask(self, ids: list[int], start: int) -> Floats:
        await self._require_same_weights()
        scored, undisturbed = await self._server.score(ids, start)
        if not undisturbed or scored.version != self._version:
            self._trusted = False
            await self._require_same_weights()
        return scored.logprobs

    async def _require_same_weights(self) -> None:
        async with self._alone(_PROBE):
            if self._trusted:
                return
            then = self._known.probe
            scored, _ = await self._server.score(self._known.ids.tolist(), 1)
            now = Probe.of(
                scored.logprobs.tolist(), model=then.model, version=scored.version, tolerance=then.tolerance
            )
            if not then.same_weights(now):
                raise EngineError(
                    f"{self._known.name} has other weights than when this run started (mean |difference| "
                    f"{then.gap(now):.3g} nats on the run's probe, tolerance {then.tolerance:g}); serve the "
                    f"old ones there, and go on with the run"
                )
            self._trusted, self._version = True, scored.version


@dataclass(slots=True)
class _Cache:
    """The latest answers, those on `most` tokens in all, keys counted as well."""

    most: int
    _answers: OrderedDict[_Key, Floats] = field(default_factory=OrderedDict[_Key, Floats])
    _tokens: int = 0

    def get(self, key: _Key) -> Floats | None:
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    def put(self, key: _Key, logprobs: Floats) -> None:
        self._answers[key] = logprobs
        self._tokens += _size(key)
        while self._tokens > self.most:
            oldest, _ = self._answers.popitem(last=False)
            self._tokens -= _size(oldest)


def _size(key: _Key) -> int:
    return len(key[0]) // 4  # ids have four bytes
