"""Several teachers as one, by hand, and how they speak in turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.records import TASK, flat_group
from turnpoint.teachers.mixture import Mixture, mixed
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.teaching import Teaching
from turnpoint.types import Group, TeacherTargets, Verdict

INF = math.inf
HALF = {"a": 0.5, "b": 0.5}


def test_both_means_by_hand() -> None:
    parts = [np.log([0.4, 0.1]), np.log([0.1, 0.1])]
    np.testing.assert_allclose(mixed(parts, weights=[0.5, 0.5], mean="arithmetic"), np.log([0.25, 0.1]))
    np.testing.assert_allclose(mixed(parts, weights=[0.5, 0.5], mean="geometric"), np.log([0.2, 0.1]))
    np.testing.assert_allclose(mixed(parts, weights=[0.9, 0.1], mean="arithmetic")[0], np.log(0.37))


def test_what_parts_find_impossible() -> None:
    parts = [[-INF, -INF, -1.0], [-2.0, -INF, -200.0]]
    arithmetic, geometric = (
        mixed(parts, weights=[0.25, 0.75], mean=mean).tolist() for mean in ("arithmetic", "geometric")
    )
    assert arithmetic == pytest.approx([-2 + math.log(0.75), -INF, -1 + math.log(0.25)])
    assert geometric == pytest.approx([-INF, -INF, -150.25])


def said(*segments: int, logprob: float) -> dict[int, TeacherTargets]:
    return {it: TeacherTargets(logprobs=np.full(2, logprob, np.float32), coef=9.0) for it in segments}


def test_where_one_part_has_no_word_the_mixture_has_none() -> None:
    mixture = Mixture(of=HALF, mean="geometric", coef=0.3)
    word = mixture.word({"a": said(1, 2, logprob=-1.0), "b": said(2, 3, logprob=-3.0)})
    assert list(word) == [2]
    assert word[2].logprobs.tolist() == [-2.0, -2.0]
    assert word[2].coef == 0.3, "its own, not its parts'"
    assert mixture.word({"a": said(1, logprob=-1.0)}) == {}


@dataclass
class Part:
    """A teacher that writes down when it is asked."""

    name: str
    logprob: float
    asked: list[str] = field(default_factory=list[str])

    async def targets(self, group: Group, member: int) -> Mapping[int, TeacherTargets]:
        self.asked.append(f"{self.name} {group.id}/{member}")
        await asyncio.sleep(0)
        return {
            segment.id: TeacherTargets(logprobs=np.full(len(segment), self.logprob, np.float32), coef=1.0)
            for segment in group.generated(member)
        }


def test_parts_speak_one_after_the_other_of_mixed_and_of_their_own_groups() -> None:
    asked: list[str] = []
    teaching = Teaching(
        teachers={"a": Part("a", -1.0, asked), "b": Part("b", -3.0, asked)},
        mixtures={"both": Mixture(of=HALF, mean="geometric", coef=1.0)},
        routing=Routing(names=("a", "b", "both"), key="expert"),
        task=True,
    )
    groups = [
        replace(
            flat_group([Verdict.scored(1.0), Verdict.invalid("x")]),
            id=name,
            task=replace(TASK, metadata={"expert": expert}),
        )
        for name, expert in [("0", "both"), ("1", "b"), ("2", "both")]
    ]
    told: list[int] = []
    words = asyncio.run(teaching.words(groups, progress=lambda rollouts, tokens: told.append(rollouts)))
    assert asked == ["a 0/0", "a 2/0", "b 0/0", "b 1/0", "b 2/0"]
    assert [{float(it.logprobs[0]) for it in word.values()} for word in words] == [{-2.0}, {-3.0}, {-2.0}]
    assert sum(told) == teaching.asked(groups) == 5


def test_one_mixture_is_for_all_problems_without_a_column() -> None:
    teaching = Teaching(
        teachers={"a": Part("a", -1.0), "b": Part("b", -3.0)},
        mixtures={"both": Mixture(of=HALF, mean="arithmetic", coef=1.0)},
        routing=Routing(names=("both",), key=None),
        task=True,
    )
    (word,) = asyncio.run(teaching.words([flat_group([Verdict.scored(1.0)])]))
    expected = math.log(0.5 * math.exp(-1) + 0.5 * math.exp(-3))
    assert [float(it.logprobs[0]) for it in word.values()] == [pytest.approx(expected)]
