"""What one training step did: the record that is logged, printed and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnpoint.metrics import Metrics
from turnpoint.reports.findings import Finding, FindingLimits, step_findings
from turnpoint.reports.rollout_metrics import rollout_metrics
from turnpoint.types import Group

_ACCOUNTED = 0.95  # of the wall time that named phases must cover


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimiser step; `metrics` holds those of `rollout_metrics` and the trainer's."""

    step: int  # counts from 1
    groups: tuple[Group, ...]
    metrics: Metrics
    seconds: Mapping[str, float]  # by phase, in order
    wall_seconds: float
    findings: tuple[Finding, ...] = ()
    signal: str = "the only ones that teach"  # what groups whose rewards differ are, in words

    def phases(self) -> dict[str, float]:
        """Returns seconds by phase, with "other" where the phases cover less than 95 % of the wall time."""
        other = self.wall_seconds - sum(self.seconds.values())
        if other <= (1 - _ACCOUNTED) * self.wall_seconds:
            return dict(self.seconds)
        return {**self.seconds, "other": other}


def make_step_report(
    *,
    step: int,
    groups: Sequence[Group],
    trainer_metrics: Metrics,
    seconds: Mapping[str, float],
    wall_seconds: float,
    limits: FindingLimits,
    first: bool,
) -> StepReport:
    """Returns the report of a step: its rollouts' and the trainer's figures and what they say.

    Raises ValueError when both define a metric of the same name.
    """
    rollouts = rollout_metrics(groups)
    twice = sorted(rollouts.keys() & trainer_metrics.keys())
    if twice:
        raise ValueError(f"step {step}: metrics {twice} come from rollouts and from the trainer")
    metrics = {**rollouts, **trainer_metrics}
    return StepReport(
        step=step,
        groups=tuple(groups),
        metrics=metrics,
        seconds=dict(seconds),
        wall_seconds=wall_seconds,
        findings=step_findings(groups, metrics, limits=limits, first=first),
        signal=limits.signal,
    )
