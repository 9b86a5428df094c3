"""Whether teachers can teach this policy: opened and audited as a run does it, a line for each check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnpoint.assemble import Policy
from turnpoint.calibration import calibrate, words_on
from turnpoint.config import DistillConfig, RunConfig
from turnpoint.diagnosis.checks import Check, Status, failed, ok, warning
from turnpoint.distill import Opened, open_teachers
from turnpoint.errors import ModelError, TurnpointError
from turnpoint.reports.teacher_findings import template
from turnpoint.teachers.detail import split_of
from turnpoint.teachers.teaching import Visit
from turnpoint.types import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found; `opened` is None where a teacher must not teach."""

    opened: Opened | None
    checks: tuple[Check, ...]


async def audit_teachers(
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
        opened = await open_teachers(config, how, policy, tasks, examples=examples, longest=longest, ask=ask)
    except TurnpointError as error:
        return Audited(opened=None, checks=(*checks, failed("teachers", " ".join(str(error).split()))))
    checks += [warning("teachers", note) for note in opened.notes]
    sound = all(check.status is not Status.FAILED for check in checks)
    return Audited(opened=opened if sound else None, checks=tuple(checks))


async def check_words(
    config: RunConfig, policy: Policy, opened: Opened, tasks: Sequence[Task], groups: Sequence[Group]
) -> list[Check]:
    """Whether asking as teachers are asked gives the policy's law back, and how far each teacher is from it.

    Each is asked about all of `groups`. What the policy's engine had cached is gone afterwards.
    """
    teachers, checks = opened.teaching.speakers, list[Check]()
    try:
        tolerance = config.training.mismatch_tolerance
        for found in await calibrate(config, policy, tasks, opened.equals()):
            checks.append(ok("calibration", found.text(tolerance=tolerance)))
    except ModelError as error:
        checks.append(failed("calibration", str(error)))
    checks += [await _first_word(name, visit, opened, groups) for name, visit in teachers.items()]
    opened.teaching.rest()
    return checks


async def _first_word(name: str, visit: Visit, opened: Opened, groups: Sequence[Group]) -> Check:
    async with visit() as teacher:
        words = await words_on(teacher, groups)
    if not any(words):
        return warning(f"{name}: KL", "it has no word on any of the rollouts that were sampled")
    found = template(split_of(groups, words, opened.teaching.kinds), who=f"teacher {name}")
    return (warning if found.warning else ok)(f"{name}: KL", found.text)
