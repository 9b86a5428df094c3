"""A step as fields in fixed places, so that the eye can run down a column of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from turnpoint.reports.branching_metrics import EXAMINATION_SHARE, REFLECT, SCORE
from turnpoint.reports.draft_metrics import ACCEPT_LENGTH
from turnpoint.reports.rollout_metrics import SLOWEST_VERIFY
from turnpoint.reports.step import StepReport
from turnpoint.reports.text import cut, number, percent
from turnpoint.teachers.metrics import KL

_SLOW = 1.0  # seconds from which the slowest verification is named


def legend(report: StepReport) -> str:
    """Returns what the fields of a step's line mean."""
    judged = report.metrics["signal"].value is not None
    rewards = (
        f"reward: mean of valid rollouts; solved: share with reward >= 1; signal: groups whose rewards "
        f"differ, {report.signal}; "
    )
    taught = "; kl to teacher: nats per sampled token" if KL in report.metrics else ""
    return f"{rewards if judged else ''}length: mean tokens{taught}"


def step_fields(report: StepReport, *, steps: int | None) -> list[str]:
    """Returns the fields of a step's line; a figure that does not exist has no field.

    `legend` says what they mean; the verification of one rollout is named when it took over a second.
    """
    return [*_fields(report, steps)]


def _fields(report: StepReport, steps: int | None) -> Iterator[str]:
    values = {name: metric.value for name, metric in report.metrics.items() if metric.value is not None}
    total = "" if steps is None else f"/{steps}"
    yield f"step {report.step:>{max(len(total) - 1, 1)}}{total}"
    if "reward" in values:
        yield f"reward {values['reward']:6.3f}"
        yield f"solved {percent(values['solved']):>5}"
    if "signal" in values:
        count = len(report.groups)
        yield f"signal {values['signal'] * count:>{len(str(count))}.0f}/{count}"
    if "length" in values:
        yield f"length {values['length']:4.0f}"
        yield f"truncated {percent(values['truncated']):>5}"
    if values.get("invalid"):
        yield f"invalid {percent(values['invalid'])}"
    if "branching/points" in values:
        depth = f" at depth {percent(values['branching/depth'])}" if "branching/depth" in values else ""
        yield f"points found {percent(values['branching/points'])}{depth}"
    if values.get(EXAMINATION_SHARE):
        seconds = f"reflect {values[REFLECT]:.1f} s, score {values[SCORE]:.1f} s"
        yield f"{seconds} summed over roots, {percent(values[EXAMINATION_SHARE])} of their time"
    if ACCEPT_LENGTH in values:
        yield f"tokens a round {values[ACCEPT_LENGTH]:.2f}"
    if "entropy" in values:
        yield f"entropy {values['entropy']:5.3f}"
    if KL in values:
        yield f"kl to teacher {values[KL]:.4f}"
    if "kl" in values:
        yield f"kl {number(values['kl'])}"
    if "grad_norm" in values:
        yield f"grad norm {number(values['grad_norm']):>7}"
    if "learning_rate" in values:
        yield f"lr {values['learning_rate']:.2e}"
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.phases().items())
    yield f"{report.wall_seconds:.1f} s ({phases})" if phases else f"{report.wall_seconds:.1f} s"
    slowest = values.get(SLOWEST_VERIFY, 0.0)
    if slowest > _SLOW:
        yield f"slowest verification {slowest:.1f} s ({_slowest_task(report)})"


def _slowest_task(report: StepReport) -> str:
    slowest = max(report.groups, key=lambda group: group.account.seconds.get(SLOWEST_VERIFY, 0.0))
    return cut(slowest.task.id, 40, "end")


def wrap_fields(fields: Sequence[str], *, width: int | None, indent: int) -> list[str]:
    """Returns the fields joined by two spaces, broken between fields where a line would pass `width`."""
    lines: list[str] = []
    for field in fields:
        if lines and (width is None or cell_len(lines[-1]) + 2 + cell_len(field) <= width):
            lines[-1] += f"  {field}"
        else:
            lines.append(field if not lines else " " * indent + field)
    return lines
