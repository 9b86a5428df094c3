"""Who has which teacher, and how its word joins the task's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.records import TASK, flat_group
from turnpoint.credit import GroupAdvantage
from turnpoint.errors import DataError
from turnpoint.teachers.metrics import teacher_metrics
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.teaching import Teaching
from turnpoint.types import Group, Json, Task, TeacherTargets, Verdict

TWO = Routing(names=("sums", "signs"), key="expert")


@dataclass
class Sayer:
    """A teacher that gives every token the same log-probability and notes whom it was asked about."""

    logprob: float
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def targets(self, group: Group, member: int) -> Mapping[int, TeacherTargets]:
        self.asked.append((group.id, member))
        return {
            segment.id: TeacherTargets(logprobs=np.full(len(segment), self.logprob, np.float32), coef=2.0)
            for segment in group.generated(member)
        }


def task(expert: object) -> Task:
    return replace(TASK, metadata={} if expert is None else {"expert": expert})


def group(name: str, expert: str) -> Group:
    verdicts = [Verdict.scored(1.0), Verdict.invalid("broken"), Verdict.scored(0.0)]
    return replace(flat_group(verdicts), id=name, task=task(expert))


def test_each_group_is_judged_by_its_own_teacher_and_invalid_members_by_none() -> None:
    sums, signs = Sayer(-1.0), Sayer(-2.0)
    teaching = Teaching(teachers={"sums": sums, "signs": signs}, routing=TWO, task=True)
    groups = [group("a", "signs"), group("b", "sums"), group("c", "signs")]
    calls: list[tuple[int, int]] = []
    words = asyncio.run(
        teaching.words(groups, progress=lambda rollouts, tokens: calls.append((rollouts, tokens)))
    )
    assert sums.asked == [("b", 0), ("b", 2)]
    assert signs.asked == [("a", 0), ("a", 2), ("c", 0), ("c", 2)]
    assert [{float(it.logprobs[0]) for it in word.values()} for word in words] == [{-2.0}, {-1.0}, {-2.0}]
    assert len(calls) == 6
    metrics = teacher_metrics(groups, words, TWO, clip=None)
    assert metrics["teacher/sums/share"].value == pytest.approx(1 / 3)
    assert metrics["teacher/signs/share"].value == pytest.approx(2 / 3)


def test_the_word_stands_beside_the_task_or_in_its_place() -> None:
    one = group("a", "sums")
    credits = GroupAdvantage().credit(one)
    word = {
        credits[0].segment: TeacherTargets(
            logprobs=np.full(len(credits[0].weights), -1.0, np.float32), coef=2.0
        )
    }
    both = Teaching(teachers={}, routing=TWO, task=True).join(credits, word)
    assert [credit.teacher is not None for credit in both] == [True, False, False]
    assert [credit.advantages is not None for credit in both] == [True, True, True]
    assert [credit.weights.tolist() for credit in both] == [credit.weights.tolist() for credit in credits]
    pure = Teaching(teachers={}, routing=TWO, task=False).join(credits, word)
    assert [credit.advantages for credit in pure] == [None, None, None]
    assert [bool(credit.weights.any()) for credit in pure] == [True, False, False]


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (["sums", None, None], "2 of 3 problems have no column 'expert' .*, the first is sum/0; name one of"),
        (
            ["sums", "minus", "minus"],
            "2 of 3 problems name a teacher .*: 'minus' \\(2\\); it has sums, signs",
        ),
        (["sums", 7, ["x"]], "2 of 3 problems name a teacher"),
    ],
)
def test_a_problem_without_a_teacher_is_refused_for_the_whole_dataset(
    experts: list[object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        TWO.check([task(expert) for expert in experts])


def test_a_name_inside_of_a_column() -> None:
    inner = Routing(names=("2", "3"), key="entry.num_terms")
    told = [replace(TASK, metadata={"entry": {"num_terms": n}}) for n in (2, 3)]
    inner.check(told)
    assert [inner.of(it) for it in told] == ["2", "3"]
    assert inner.of(replace(TASK, metadata={"entry.num_terms": 3})) == "3", "a column of that very name"
    nothing: list[dict[str, Json]] = [{"entry": 3}, {"entry": {}}, {"entry": {"num_terms": None}}, {}]
    for metadata in nothing:
        with pytest.raises(DataError, match=r"1 of 1 problems have no column 'entry\.num_terms'"):
            inner.check([replace(TASK, metadata=metadata)])


def test_what_can_be_taught() -> None:
    TWO.check([task("sums"), task("signs")])
    Routing(names=("big",), key=None).check([task(None)])
