"""Where a teacher and its policy differ: kinds of tokens, a few of them, and rollouts without a word."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.serve import make_engine
from tests.reports.samples import make_group
from turnpoint.metrics import Metric
from turnpoint.teachers.detail import detail_metrics, silences
from turnpoint.teachers.kinds import TokenKinds
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.scoring import ScoringTeacher, Silence, Told
from turnpoint.teachers.teaching import Teaching, Word
from turnpoint.types import Author, Group, TeacherTargets, TokenIds, TreeBuilder, token_array

ENDS, SPECIAL = frozenset({2}), frozenset({3})


def teaching(told: Told | None = None, *, context: int = 64) -> Teaching:
    engine = make_engine(context_length=context)
    teacher = ScoringTeacher(name="big", engine=engine, coef=1.0, temperature=1.0, told=told)
    return Teaching(
        teachers={"big": teacher},
        routing=Routing(names=("big",), key=None),
        task=True,
        kinds=TokenKinds(ends=ENDS, special=SPECIAL),
    )


def group_of(ids: list[int], logprobs: list[float]) -> Group:
    """One rollout of these tokens."""
    group, tree = make_group([1.0]), TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[8, 9])
    tree.append(parent=prompt, author=Author.POLICY, token_ids=ids, logprobs=logprobs, policy_version=0)
    return Group(id="1/0", task=group.task, tree=tree.freeze(), members=group.members)


def metrics_of(ids: list[int], student: list[float], teacher: list[float]) -> dict[str, float | None]:
    word: Word = {1: TeacherTargets(logprobs=np.array(teacher, np.float32), coef=1.0)}
    found: dict[str, Metric] = dict(detail_metrics([group_of(ids, student)], [word], teaching()))
    return {name: metric.value for name, metric in found.items()}


def test_each_kind_of_token_has_its_own_mean_by_hand() -> None:
    ids = [5, 6, 3, 7, 2]
    found = metrics_of(ids, [-1.0, -1.0, -1.0, -1.0, -1.0], [-1.5, -0.5, -2.0, -1.75, -9.0])
    assert found["teacher/kl_content"] == pytest.approx((0.5 - 0.5 + 0.75) / 3)
    assert found["teacher/kl_special"] == pytest.approx(1.0)
    assert found["teacher/kl_template"] == pytest.approx(8.0)


def test_what_is_impossible_counts_as_everywhere_and_a_kind_that_is_not_there_is_absent() -> None:
    found = metrics_of([5, 6], [-1.0, -1.0], [-np.inf, -1.0])
    assert found["teacher/kl_content"] == pytest.approx(99 / 2)
    assert found["teacher/kl_template"] is None


def test_concentration_is_the_share_of_one_token_in_a_hundred() -> None:
    ids, student = [5] * 200, [-1.0] * 200
    assert metrics_of(ids, student, [-1.5] * 200)["teacher/concentration"] == pytest.approx(0.01)
    few = [-51.0, -51.0, *[-2.0] * 198]
    assert metrics_of(ids, student, few)["teacher/concentration"] == pytest.approx(100 / 298)


def test_rollouts_without_a_word_are_counted_by_reason() -> None:
    def told(group: Group, member: int) -> TokenIds | None:
        return None if member == 0 else token_array([9] * (6 if member == 1 else 2))

    group = make_group([1.0, 1.0, 1.0, "broken"])
    some = teaching(told, context=6)
    spoken = {group.members[2].leaf: TeacherTargets(logprobs=np.zeros(3, np.float32), coef=1.0)}
    assert silences([group], [spoken], some) == {Silence.UNTOLD: 1, Silence.TOO_LONG: 1}
    found = detail_metrics([group], [spoken], some)
    assert found["teacher/silent/untold"].value == 1
    assert found["teacher/silent/too_long"].value == 1
