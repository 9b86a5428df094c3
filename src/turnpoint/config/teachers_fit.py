"""Whether the teachers of a recipe go together: who is chosen, what mixtures are made of, shares."""

from __future__ import annotations

import math
from collections.abc import Iterable

from turnpoint.config.distillation import (
    DistillConfig,
    HindsightTeacher,
    MixtureTeacher,
    ModelTeacher,
    RunTeacher,
)
from turnpoint.config.servers import SERVER_FREE, ServerTeacher

_CLOSE = 1e-6  # of sums that should be 1
_WHOLE_LAW = "; take loss.kind = sampled"


def teachers_fit(how: DistillConfig, *, aggregation: str, told: bool) -> None:
    """Raises ValueError in one line, with the way out, unless all of `how` can be meant.

    `aggregation` is that of the policy loss, by which the teachers' words are averaged, too; `told`: whether
    a branch rule tells the policy how a root turned out.
    """
    _mixtures(how)
    if how.key is None and len(how.chosen) != 1:
        raise ValueError(
            f"distill.teachers has {len(how.chosen)}, {', '.join(how.chosen)}: say by distill.key "
            f"which column of a problem names its teacher"
        )
    _something_else_teaches(how)
    _hindsight(how, told)
    _shares(how, aggregation)
    _whole_law(how)


def _mixtures(how: DistillConfig) -> None:
    for name, teacher in how.teachers.items():
        if not isinstance(teacher, MixtureTeacher):
            continue
        where = f"distill.teachers.{name}.of"
        for part in teacher.of:
            if part not in how.teachers:
                others = ", ".join(other for other in how.teachers if other != name)
                raise ValueError(f"{where}: there is no teacher {part}; there are {others}")
            if isinstance(how.teachers[part], MixtureTeacher):
                raise ValueError(
                    f"{where}: {part} is a mixture itself; name its parts, with the products of the weights"
                )
        _sum_to_one(where, list(teacher.of.values()))
    if how.key is None:
        for part in sorted(how.parts):
            if how.teachers[part].coef is not None:
                raise ValueError(
                    f"distill.teachers.{part}.coef says nothing: no problem has {part} but as a part of a "
                    f"mixture; give the mixture a coef"
                )


def _sum_to_one(where: str, numbers: list[float]) -> None:
    if abs(math.fsum(numbers) - 1) > _CLOSE:
        shown = " + ".join(f"{number:g}" for number in numbers)
        raise ValueError(f"{where}: {shown} = {math.fsum(numbers):g}; they must sum to 1")


def _something_else_teaches(how: DistillConfig) -> None:
    kinds = {teacher.kind for teacher in how.teachers.values()} - {"mixture"}
    if not how.task and kinds <= {"start", "ema"}:
        raise ValueError(
            f"distill.task = false with teachers of kind {' and '.join(sorted(kinds))} alone: the policy "
            f"begins where they are and nothing ever moves it; let the task teach, too, or add a model"
        )


def _hindsight(how: DistillConfig, told: bool) -> None:
    for name, teacher in how.teachers.items():
        if isinstance(teacher, HindsightTeacher) and teacher.source == "branch" and not told:
            raise ValueError(
                f"distill.teachers.{name}.source = branch is what rollout.branching.rule = hindsight tells "
                f"the policy, and there is no such rule; take source = feedback or sibling"
            )


def _shares(how: DistillConfig, aggregation: str) -> None:
    shares = {name: it.share for name, it in how.teachers.items() if it.share is not None}
    if not shares:
        return
    if how.key is None or len(how.teachers) == 1:
        raise ValueError("distill.teachers: share divides problems among teachers, and one has them all")
    without = [name for name in how.teachers if name not in shares and name not in how.parts]
    if without:
        raise ValueError(
            f"distill.teachers: {', '.join(shares)} has a share and {', '.join(without)} has none; give one "
            f"to all that problems name, or to none"
        )
    _sum_to_one("distill.teachers: share", list(shares.values()))
    if aggregation == "sequence":
        raise ValueError(
            "distill.teachers: share weighs tokens, and with loss.aggregation = sequence a rollout counts "
            "the same whatever its length; take aggregation = token or constant, or leave shares out"
        )


def _whole_law(how: DistillConfig) -> None:
    if how.loss.kind == "sampled":
        return
    takes = f"distill.loss.kind = {how.loss.kind} takes the whole law of teachers in this process"
    for name, teacher in how.teachers.items():
        if teacher.kind == "hindsight":
            raise ValueError(f"{takes}, and {name} (hindsight) judges from another prompt{_WHOLE_LAW}")
        if teacher.kind == "server":
            raise ValueError(f"{takes}, and {name} is behind a server{_WHOLE_LAW}")
        if teacher.kind == "mixture":
            raise ValueError(
                f"{takes}, and {name} (mixture) would need the heads of all its parts at once{_WHOLE_LAW}"
            )
    if how.resident == "one":
        raise ValueError(
            f"{takes} in every update, and distill.resident = one lets go of them once they have spoken; "
            f"take resident = all, or loss.kind = sampled"
        )


def free_keys(how: DistillConfig) -> Iterable[str]:
    """Yields the keys that a run which goes on may change: where teachers are; who they are is checked."""
    for name, teacher in how.teachers.items():
        match teacher:
            case ServerTeacher():
                keys = SERVER_FREE
            case ModelTeacher() | RunTeacher():
                keys = ("path",)
            case _:
                keys = tuple[str, ...]()
        yield from (f"distill.teachers.{name}.{key}" for key in keys)
