"""Whether teachers can teach this policy: opened and audited as a run does it, a line for each check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnpoint.assemble import Policy
from turnpoint.config import DistillConfig, RunConfig
from turnpoint.diagnosis.checks import Check, Status, failed, ok, warning
from turnpoint.distill import Opened, open_teachers
from turnpoint.errors import ModelError, TurnpointError
from turnpoint.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found; `opened` is None where a teacher must not teach."""

    opened: Opened | None
    checks: tuple[Check, ...]


def audit_teachers(
    config: RunConfig,
    how: DistillConfig,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    examples: Sequence[tuple[str, str]],
    longest: int,
) -> Audited:
    """Returns the teachers and a check for each thing that they were asked; arguments of `open_teachers`.

    All checks of a teacher are made, also behind one that failed; a teacher that cannot be opened is the
    last that is looked at.
    """
    checks: list[Check] = []

    def ask(what: str, look: Callable[[], str]) -> None:
        try:
            checks.append(ok(what, look()))
        except ModelError as error:
            checks.append(failed(what, str(error)))

    try:
        opened = open_teachers(config, how, policy, tasks, examples=examples, longest=longest, ask=ask)
    except TurnpointError as error:
        return Audited(opened=None, checks=(*checks, failed("teachers", " ".join(str(error).split()))))
    checks += [warning("teachers", note) for note in opened.notes]
    sound = all(check.status is not Status.FAILED for check in checks)
    return Audited(opened=opened if sound else None, checks=tuple(checks))
