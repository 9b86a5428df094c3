"""What a measurement leaves: tokens a second, two ceilings beside them, the share of the lower one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from turnpoint.diagnosis.rows import Shape
from turnpoint.speed.machine import Machine

Bound = Literal["memory", "arithmetic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of one figure, in seconds."""

    seconds: float  # that it took
    arithmetic: float  # that its matrix products take alone
    memory: float  # that reading what it must read takes alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Tokens a second of one kind of work, and what they could be.

    >>> rounds = [Measured(seconds=2.0, arithmetic=0.5, memory=1.0)]
    >>> figure = Figure(name="sample", tokens=100, rounds=tuple(rounds), detail="")
    >>> figure.rate, figure.ceiling, figure.bound, figure.share
    (50.0, 100.0, 'memory', 0.5)
    """

    name: str  # stable: sample_one, sample_batch, prefill, score, train
    tokens: int  # of a round
    rounds: tuple[Measured, ...]
    detail: str  # what a round was

    @property
    def rate(self) -> float:
        """Tokens a second, by the median round."""
        return self.tokens / statistics.median(it.seconds for it in self.rounds)

    @property
    def arithmetic_ceiling(self) -> float:
        """Tokens a second that the matrix products alone allow."""
        return self.tokens / statistics.median(it.arithmetic for it in self.rounds)

    @property
    def memory_ceiling(self) -> float:
        """Tokens a second that memory allows."""
        return self.tokens / statistics.median(it.memory for it in self.rounds)

    @property
    def ceiling(self) -> float:
        """The lower of the two: the roofline."""
        return min(self.memory_ceiling, self.arithmetic_ceiling)

    @property
    def bound(self) -> Bound:
        """Which of the two is lower."""
        return "memory" if self.memory_ceiling < self.arithmetic_ceiling else "arithmetic"

    @property
    def share(self) -> float:
        """How much of the ceiling is reached; above 1 where weights stay in caches."""
        return self.rate / self.ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Where the time of a decode step goes; the parts are seconds of one step and add up to it."""

    parts: Mapping[str, float]
    steps: int  # that were profiled

    @property
    def step(self) -> float:
        """Seconds of a step, with the profiler on, which slows small operations most."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `turnpoint bench` found."""

    model: str
    parameters: int
    machine: Machine
    workers: int  # processes that sample, with the machine's threads divided between them
    shape: Shape
    rounds: int
    seconds: float
    bandwidth: float  # bytes a second
    flops: float  # a second, of the matrix products of the batch
    step_bytes: float  # that decoding one token of one sequence reads
    crossing: float  # sequences at which arithmetic takes as long as reading the weights
    processor_share: float  # of the time of its threads that this process got while it sampled the batch
    figures: tuple[Figure, ...]
    phases: Phases | None  # None: too few tokens to see a step from its begin to its end
    notes: tuple[str, ...] = field(default=())  # what was left out or made smaller, and why

    def figure(self, name: str) -> Figure | None:
        """Returns the figure of that name; None when it was not measured."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """Returns everything as plain values."""
        tree = asdict(self)
        tree["figures"] = [
            {
                **asdict(figure),
                "tokens_per_second": figure.rate,
                "memory_ceiling": figure.memory_ceiling,
                "arithmetic_ceiling": figure.arithmetic_ceiling,
                "bound": figure.bound,
                "share": figure.share,
            }
            for figure in self.figures
        ]
        return tree
