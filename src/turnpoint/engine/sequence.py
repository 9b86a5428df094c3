"""What the engine knows about one request while it is served: a generation or a scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from turnpoint.engine.stops import StopScanner, cut_at_stop
from turnpoint.engine.uniforms import Uniforms
from turnpoint.protocols import Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.types import FinishReason, TokenIds, float_array, token_array


class Generation:
    """A completion that grows. `ids` [length] is prompt and completion so far."""

    def __init__(
        self, request: GenerateRequest, *, decode: Callable[[TokenIds], str], context_length: int
    ) -> None:
        self.request = request
        self.abandoned = False  # nobody waits any more
        self.cached_tokens = 0
        self.uniforms = Uniforms(seed=request.seed, request_id=request.id)
        self._prompt_length = len(request.prompt_ids)
        self._text_start = self._prompt_length - request.continued
        self._limit = min(self._prompt_length + request.max_tokens, context_length)
        self._ids = np.empty(self._limit, dtype=np.int32)
        self._ids[: self._prompt_length] = request.prompt_ids
        self.length = self._prompt_length
        self._logprobs: list[float] = []
        self._decode = decode
        self._scanner = StopScanner(decode, request.stop_strings)
        self._scanner.pass_over(self._ids[self._text_start : self._prompt_length])

    @property
    def prefix(self) -> TokenIds:
        """The ids that must have gone through the network before the first draw."""
        return self._ids[: self._prompt_length]

    @property
    def ids(self) -> TokenIds:
        """[length] prompt and completion."""
        return self._ids[: self.length]

    @property
    def limit(self) -> int:
        """The largest length it can reach."""
        return self._limit

    @property
    def last_id(self) -> int:
        """The newest token."""
        return int(self._ids[self.length - 1])

    def append(self, token: int, logprob: float) -> FinishReason | None:
        """Adds a sampled token; returns why the completion ends with it, or None."""
        self._ids[self.length] = token
        self.length += 1
        self._logprobs.append(logprob)
        if token in self.request.stop_ids or self._scanner.push(self._ids[self._text_start : self.length]):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.length == self._limit else None

    def extend(self, drawn: Iterable[tuple[int, float]]) -> FinishReason | None:
        """Adds tokens and their log-probabilities up to the first that ends the completion; as `append`."""
        for token, logprob in drawn:
            if (end := self.append(token, logprob)) is not None:
                return end
        return None

    def completion(self, finish: FinishReason, policy_version: int) -> Completion:
        """Returns the finished completion."""
        stopped = finish is FinishReason.STOP and self.last_id in self.request.stop_ids
        text = self._decode(self._ids[self._text_start : self.length - stopped])
        return Completion(
            token_ids=token_array(self._ids[self._prompt_length : self.length]),
            logprobs=float_array(self._logprobs),
            policy_version=policy_version,
            finish=finish,
            text=cut_at_stop(text, self.request.stop_strings),
            cached_tokens=self.cached_tokens,
        )


class Scoring:
    """Given tokens of which those from `request.start` on are scored, piece by piece."""

    def __init__(self, request: ScoreRequest) -> None:
        self.request = request
        self.abandoned = False  # nobody waits any more
        self.cached_tokens = 0
        self.scored = request.start  # tokens before this one need no more work
        self._parts: list[Scores] = []

    @property
    def prefix(self) -> TokenIds:
        """The ids that must have gone through the network before all can be scored."""
        return self.request.token_ids[:-1]

    @property
    def unscored(self) -> int:
        """How many tokens are left to score."""
        return len(self.request.token_ids) - self.scored

    def append(self, part: Scores) -> None:
        """Adds the scores of the next tokens."""
        self._parts.append(part)
        self.scored += len(part.logprobs)

    def scores(self) -> Scores:
        """Returns all scores as one."""
        return Scores(
            logprobs=np.concatenate([part.logprobs for part in self._parts]),
            policy_version=self._parts[0].policy_version,
            entropy=_joined([part.entropy for part in self._parts]),
            top_ids=_joined([part.top_ids for part in self._parts]),
            top_logprobs=_joined([part.top_logprobs for part in self._parts]),
            cached_tokens=self.cached_tokens,
        )


_T = TypeVar("_T", bound=np.generic)


def _joined(parts: Sequence[npt.NDArray[_T] | None]) -> npt.NDArray[_T] | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None
