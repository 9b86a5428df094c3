"""An engine whose law is known exactly: for tests, and for trying rules and loops without a model.

    law(prefix) = softmax((gaussian(hash of the whole prefix) + bias) / temperature)

The next-token law depends on every token before it, so that forks and hindsight change it as they would
change a model's. `bias` [V] is the only weight.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.errors import EngineError, WeightSyncError
from turnpoint.protocols import Capabilities, Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.types import FinishReason, TokenIds, float_array, token_array

_SHARPNESS = 1.5  # standard deviation of the logits


def letters(token_ids: TokenIds) -> str:
    """Returns id 0 as "a", 1 as "b" and so on."""
    return "".join(chr(ord("a") + token) for token in token_ids.tolist())


class FakeEngine:
    """An `Engine` and `WeightReceiver` over `vocab_size` ids that yields to others after every token.

    Requests whose id is in `failing` raise EngineError after their delay; `delays` are seconds by request
    id. `started` lists the ids of all requests in order, `running` those not yet answered; both are for
    tests. There is no batch: what an engine does to rounding cannot be seen here.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 5,
        context_length: int = 64,
        decode: Callable[[TokenIds], str] = letters,
        law_seed: int = 0,
        failing: Collection[str] = (),
        delays: Mapping[str, float] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.started: list[str] = []
        self.running: set[str] = set()
        self._context_length = context_length
        self._decode = decode
        self._law_seed = law_seed
        self._failing = failing
        self._delays = delays or {}
        self._bias = np.zeros(vocab_size)
        self._version = 0
        self._cache: set[tuple[int, ...]] = set()  # every prefix that a prefix cache would hold

    @property
    def capabilities(self) -> Capabilities:
        """Everything a rule can ask for."""
        return Capabilities(
            name="fake",
            context_length=self._context_length,
            entropy=True,
            max_top_k=self.vocab_size,
            score_temperature=True,
            prefix_cache=True,
        )

    def law(self, prefix: npt.ArrayLike, *, temperature: float = 1.0) -> npt.NDArray[np.float64]:
        """Returns the exact probability of each id after `prefix`, [V]."""
        text = np.asarray(prefix, dtype=np.int32).tobytes()
        logits = _counter(self._law_seed, text, 0).standard_normal(self.vocab_size) * _SHARPNESS
        scaled = (logits + self._bias) / temperature
        odds = np.exp(scaled - scaled.max())
        return odds / odds.sum()

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns one completion; raises EngineError for a request that cannot be served."""
        self._check(request.id, request.prompt_ids)
        if request.max_tokens < 1 or len(request.prompt_ids) >= self._context_length:
            raise EngineError(
                f"request {request.id}: {len(request.prompt_ids)} prompt tokens and max_tokens "
                f"{request.max_tokens} leave nothing to sample in a context of {self._context_length}"
            )
        if request.top_k or request.top_p < 1:
            raise EngineError(f"request {request.id}: this engine samples whole laws, no top_k or top_p")
        with self._serving(request.id):
            await self._obey_test(request.id)
            return await self._sample(request)

    async def score(self, request: ScoreRequest) -> Scores:
        """Returns exact scores; raises EngineError for a request that cannot be served."""
        self._check(request.id, request.token_ids)
        if not 1 <= request.start <= len(request.token_ids) or not request.temperature > 0:
            raise EngineError(
                f"request {request.id}: cannot score {len(request.token_ids)} tokens from "
                f"{request.start} at temperature {request.temperature}"
            )
        if not 0 <= request.top_k <= self.vocab_size:
            raise EngineError(f"request {request.id}: top_k {request.top_k} of {self.vocab_size} ids")
        with self._serving(request.id):
            await self._obey_test(request.id)
            return self._scores(request)

    def load_weights(self, state: Mapping[str, Tensor], version: int) -> str:
        """Replaces `bias` [V]; raises WeightSyncError for other tensors or while requests run."""
        if self.running:
            raise WeightSyncError(f"new weights while {len(self.running)} requests are running")
        shapes = {name: list(tensor.shape) for name, tensor in state.items()}
        if shapes != {"bias": [self.vocab_size]}:
            raise WeightSyncError(f"expected only bias of shape [{self.vocab_size}], got {shapes}")
        if not torch.isfinite(state["bias"]).all():
            raise WeightSyncError("bias is not finite")
        bias = state["bias"].detach().to("cpu", torch.float32).numpy()
        self._bias = bias.astype(np.float64)
        self._version = version
        self._cache.clear()
        return f"{zlib.crc32(bias.tobytes(), zlib.crc32(b'bias')):08x}"

    async def _sample(self, request: GenerateRequest) -> Completion:
        prompt = tuple(request.prompt_ids.tolist())
        cached = self._cached(prompt)
        self._remember(prompt)
        ids, logprobs = list(prompt), list[float]()
        text, finish = "", FinishReason.LENGTH
        for _ in range(min(request.max_tokens, self._context_length - len(prompt))):
            token, logprob = self._draw(ids, request)
            ids.append(token)
            logprobs.append(logprob)
            text, stopped = self._text(ids[len(prompt) - request.continued :], request)
            if stopped:
                finish = FinishReason.STOP
                break
            await asyncio.sleep(0)
        self._remember(tuple(ids))
        return Completion(
            token_ids=token_array(ids[len(prompt) :]),
            logprobs=float_array(logprobs),
            policy_version=self._version,
            finish=finish,
            text=text,
            cached_tokens=cached,
        )

    def _draw(self, ids: list[int], request: GenerateRequest) -> tuple[int, float]:
        if request.temperature == 0:
            return int(self.law(ids).argmax()), 0.0
        law = self.law(ids, temperature=request.temperature)
        uniform = _counter(request.seed, request.id.encode("utf-8", "surrogatepass"), len(ids)).random()
        token = min(int(np.searchsorted(law.cumsum(), uniform, side="right")), self.vocab_size - 1)
        return token, float(np.log(law[token]))

    def _text(self, generated: list[int], request: GenerateRequest) -> tuple[str, bool]:
        if generated[-1] in request.stop_ids:
            return self._decode(token_array(generated[:-1])), True
        text = self._decode(token_array(generated))
        ends = [text.index(stop) for stop in request.stop_strings if stop in text]
        return text[: min(ends, default=len(text))], bool(ends)

    def _scores(self, request: ScoreRequest) -> Scores:
        ids, start = request.token_ids, request.start
        laws = [self.law(ids[:i], temperature=request.temperature) for i in range(start, len(ids))]
        logs = np.log(np.array(laws).reshape(-1, self.vocab_size))  # [m, V]
        top = np.argsort(-logs, axis=1, kind="stable")[:, : request.top_k]
        given = tuple(ids.tolist())
        cached = self._cached(given)
        self._remember(given[:-1])
        return Scores(
            logprobs=float_array(logs[np.arange(len(laws)), ids[start:]]),
            policy_version=self._version,
            entropy=float_array(-(np.exp(logs) * logs).sum(axis=1)) if request.entropy else None,
            top_ids=top.astype(np.int32) if request.top_k else None,
            top_logprobs=np.take_along_axis(logs, top, axis=1).astype(np.float32) if request.top_k else None,
            cached_tokens=cached,
        )

    def _check(self, request: str, token_ids: TokenIds) -> None:
        known = (token_ids >= 0) & (token_ids < self.vocab_size)
        if not len(token_ids) or not known.all() or len(token_ids) > self._context_length:
            raise EngineError(
                f"request {request}: needs 1 to {self._context_length} ids below {self.vocab_size}, "
                f"got {len(token_ids)} with {int((~known).sum())} unknown"
            )

    @contextmanager
    def _serving(self, request: str) -> Generator[None]:
        self.started.append(request)
        self.running.add(request)
        try:
            yield
        finally:
            self.running.discard(request)

    async def _obey_test(self, request: str) -> None:
        await asyncio.sleep(self._delays.get(request, 0.0))
        if request in self._failing:
            raise EngineError(f"request {request}: failed, as this fake was told")

    def _cached(self, prompt: tuple[int, ...]) -> int:
        known = (n for n in range(len(prompt) - 1, 0, -1) if prompt[:n] in self._cache)
        return next(known, 0)

    def _remember(self, ids: tuple[int, ...]) -> None:
        self._cache.update(ids[:n] for n in range(1, len(ids) + 1))


def _counter(seed: int, name: bytes, position: int) -> np.random.Generator:
    """Returns a generator that is a function of its arguments alone."""
    key = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[position, 0, 0, 0]))
