"""What serves requests by number: in this process, or behind a pipe in one of its own.

    step(arrived, abandoned)  ->  what it finished, whether anything is left, counters

One call is one step of the engine, so whoever calls decides what is in time for which step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from turnpoint.engine.runner import Runner
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.engine.stats import EngineStats
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.types import TokenIds

Request: TypeAlias = GenerateRequest | ScoreRequest
Result: TypeAlias = Completion | Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one worker may hold; see `TorchEngine`."""

    max_running: int
    max_step_tokens: int
    cache_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What a step left."""

    finished: list[tuple[int, Result]]
    idle: bool  # nothing is left to do
    stats: EngineStats  # since the worker was made


@runtime_checkable
class Worker(Protocol):
    """Serves one call at a time."""

    def ready(self) -> None:
        """Returns once it can serve."""
        ...

    def step(self, arrived: Sequence[tuple[int, Request]], abandoned: Iterable[int]) -> Stepped:
        """Takes requests in, lets go of those nobody waits for, runs one step.

        A step that raises has dropped everything.
        """
        ...

    def renew(self, version: int) -> None:
        """Drops everything computed with the weights as they were before `version`."""
        ...

    def close(self) -> None:
        """Ends it; safe to call twice."""
        ...


class LocalWorker:
    """A `Worker` in this process."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        decode: Callable[[TokenIds], str],
        context_length: int,
        limits: Limits,
        pack: bool = True,
    ) -> None:
        self._runner = Runner(
            decoder,
            max_running=limits.max_running,
            max_step_tokens=limits.max_step_tokens,
            cache_tokens=limits.cache_tokens,
            pack=pack,
        )
        self._decode = decode
        self._context_length = context_length
        self._numbers: dict[Generation | Scoring, int] = {}
        self._sequences: dict[int, Generation | Scoring] = {}

    def ready(self) -> None:
        """As `Worker.ready`."""

    def step(self, arrived: Sequence[tuple[int, Request]], abandoned: Iterable[int]) -> Stepped:
        """As `Worker.step`."""
        try:
            for number, request in arrived:
                self._take(number, request)
            for number in abandoned:
                if (sequence := self._sequences.pop(number, None)) is not None:
                    sequence.abandoned = True
                    del self._numbers[sequence]
            finished = [(self._numbers.get(sequence), result) for sequence, result in self._runner.step()]
        except BaseException:
            self._forget()  # what was half computed must not be read
            raise
        for number, _ in finished:
            if number is not None:
                del self._numbers[self._sequences.pop(number)]
        return Stepped(
            finished=[(number, result) for number, result in finished if number is not None],
            idle=self._runner.idle,
            stats=self._runner.stats,
        )

    def _take(self, number: int, request: Request) -> None:
        match request:
            case GenerateRequest():
                sequence = Generation(request, decode=self._decode, context_length=self._context_length)
            case ScoreRequest():
                sequence = Scoring(request)
        self._sequences[number], self._numbers[sequence] = sequence, number
        self._runner.submit(sequence)

    def renew(self, version: int) -> None:
        """As `Worker.renew`."""
        self._forget()
        self._runner.renew(version)

    def _forget(self) -> None:
        self._numbers.clear()
        self._sequences.clear()
        self._runner.forget()

    def close(self) -> None:
        """Nothing ends but what is kept."""
        self._forget()
