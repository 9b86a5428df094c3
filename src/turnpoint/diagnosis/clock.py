"""How long a run will take: measured speeds, scaled to its steps, rollouts and evaluations."""

from __future__ import annotations

from dataclasses import dataclass

from turnpoint.config import EvaluationConfig, RunConfig
from turnpoint.diagnosis.checks import Check, ok
from turnpoint.diagnosis.cost import LinearCost
from turnpoint.diagnosis.rows import Shape, rows_of_step
from turnpoint.diagnosis.sampling import Speed
from turnpoint.reports.text import duration

_FORWARD = 1 / 3  # of forward and backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """A run's wall clock."""

    rollouts: float
    training: float  # forward, backward, optimiser, new weights
    evaluation: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.rollouts + self.training + self.evaluation

    def at_least(self, other: Seconds) -> Seconds:
        """Returns the larger of both, part by part."""
        return Seconds(
            rollouts=max(self.rollouts, other.rollouts),
            training=max(self.training, other.training),
            evaluation=max(self.evaluation, other.evaluation),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What was measured, in seconds."""

    speed: Speed
    training: LinearCost  # forward and backward of a packed row
    optimizer: float  # one update of all trained weights
    publish: float  # new weights to the engine

    def run(
        self, config: RunConfig, shape: Shape, *, packed: float, decode_steps: float, draws: float
    ) -> Seconds:
        """Returns what a run takes whose steps have `shape`.

        `packed`: share of the groups that train. `decode_steps`: how many steps of the whole batch the
        rollouts of one step take. `draws`: how often a step samples its batch, when groups are refilled.
        """
        steps = config.training.steps
        row, rows = rows_of_step(shape, max_tokens=config.training.micro_batch_tokens)
        passes = config.training.epochs + _FORWARD * (
            (config.kl is not None) + (config.correction is not None or config.updates_per_step > 1)
        )
        learning = packed * rows * self.training.of(row) * passes
        updates = config.updates_per_step * self.optimizer
        rollouts = self.speed.prefill + decode_steps * self.speed.decode_step
        return Seconds(
            rollouts=steps * draws * rollouts,
            training=steps * (learning + updates + self.publish),
            evaluation=self._evaluations(config, rollouts),
        )

    def _evaluations(self, config: RunConfig, rollouts: float) -> float:
        """Evaluations as so many rollouts of the step's kind."""
        how = config.evaluation
        if how is None:
            return 0.0
        step = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
        return evaluations(how, config.training.steps) * how.tasks * (1 + how.samples) / step * rollouts


def evaluations(how: EvaluationConfig, steps: int) -> int:
    """Returns how many evaluations a run has: before, after, and every so many steps in between."""
    return 2 + (0 if how.every is None else (steps - 1) // how.every)


def check_time(expected: Seconds | None, longest: Seconds, *, steps: int, measured: str) -> Check:
    """What the run will take; None: how long rollouts get is not known. `measured`: what it comes from.

    The bound is reckoned from speeds that noise can make lower than what was just seen; it is never told as
    less than that.
    """
    most = longest if expected is None else longest.at_least(expected)
    bound = f"{_told(most)} if every rollout is as long as allowed"
    text = f"up to about {bound}" if expected is None else f"about {_told(expected)}; up to {bound}"
    return ok("time", f"{text}; {steps} steps, extrapolated from {measured}")


def _told(seconds: Seconds) -> str:
    parts = [("rollouts", seconds.rollouts), ("training", seconds.training)]
    if seconds.evaluation:
        parts.append(("evaluations", seconds.evaluation))
    listed = ", ".join(f"{name} {duration(value)}" for name, value in parts)
    return f"{duration(seconds.total)} ({listed})"
