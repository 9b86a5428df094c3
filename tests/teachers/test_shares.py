"""Shares of teachers in a step, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import TASK, flat_group
from turnpoint.credit import GroupAdvantage
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.shares import Credited, balanced, share_weights
from turnpoint.teachers.teaching import Teaching
from turnpoint.types import TeacherTargets, Verdict

NAMES: tuple[str, ...] = ("sums", "signs", "chat")
ROUTING = Routing(names=NAMES, key="expert")
THIRDS: dict[str, float] = {name: 1 / 3 for name in NAMES}  # noqa: C420


def test_the_weights_by_hand() -> None:
    found = share_weights(THIRDS, {"sums": 8000, "signs": 1000, "chat": 1000})
    assert list(found) == list(NAMES)
    assert list(found.values()) == pytest.approx([0.41667, 3.33333, 3.33333], abs=5e-6)
    uneven = share_weights(
        {"sums": 0.8, "signs": 0.1, "chat": 0.1}, {"sums": 8000, "signs": 1000, "chat": 1000}
    )
    assert uneven == {name: pytest.approx(1.0) for name in NAMES}


def test_one_without_tokens_leaves_its_share_to_the_others() -> None:
    found = share_weights({"sums": 0.6, "signs": 0.2, "chat": 0.2}, {"sums": 300, "signs": 100})
    assert found == {"sums": pytest.approx(1.0), "signs": pytest.approx(1.0)}
    assert share_weights(THIRDS, {}) == {}


@given(st.lists(st.integers(0, 10_000), min_size=3, max_size=3))
def test_the_sum_over_tokens_stays_what_it_was(counts: list[int]) -> None:
    tokens = dict(zip(NAMES, counts, strict=True))
    found = share_weights({"sums": 0.5, "signs": 0.3, "chat": 0.2}, tokens)
    assert sum(weight * tokens[name] for name, weight in found.items()) == pytest.approx(sum(counts))


def credited(expert: str, lengths: list[int], *, silent: int | None = None) -> Credited:
    """Returns a group whose teacher has a word, with coef 2, on all of its rollouts but `silent`."""
    verdicts = [Verdict.scored(float(index % 2)) for index in range(len(lengths))]
    group = replace(flat_group(verdicts, lengths), task=replace(TASK, metadata={"expert": expert}))
    credits = GroupAdvantage().credit(group)
    word = {
        it.segment: TeacherTargets(logprobs=np.full(len(it.weights), -1.0, np.float32), coef=2.0)
        for index, it in enumerate(credits)
        if index != silent
    }
    return group, Teaching(teachers={}, routing=ROUTING, task=True).join(credits, word)


def coefs(items: list[Credited]) -> list[list[float | None]]:
    return [[it.teacher and round(it.teacher.coef, 4) for it in credits] for _, credits in items]


def test_coefs_are_weighed_and_the_tasks_own_loss_is_not() -> None:
    before = [credited("sums", [10, 6]), credited("signs", [2, 2])]
    after, metrics = balanced(before, ROUTING, {"sums": 0.5, "signs": 0.3, "chat": 0.2})
    # 16 and 4 tokens of 20; chat has none, so 0.625 / 0.8 and 0.375 / 0.2
    assert coefs(after) == [[1.5625, 1.5625], [3.75, 3.75]]
    assert {name: metric.value for name, metric in metrics.items()} == {
        "teacher/sums/weight": pytest.approx(0.78125),
        "teacher/signs/weight": pytest.approx(1.875),
        "teacher/chat/weight": None,
    }
    for (_, was), (_, now) in zip(before, after, strict=True):
        for one, other in zip(was, now, strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)
            np.testing.assert_array_equal(one.advantages, other.advantages)


def test_tokens_without_a_word_or_without_a_weight_are_not_counted() -> None:
    group, credits = credited("sums", [10, 6], silent=1)
    masked = replace(credits[0], weights=np.array([1] * 4 + [0] * 6, dtype=np.float32))
    items = [(group, [masked, credits[1]]), credited("signs", [2, 2])]
    after, _ = balanced(items, ROUTING, {"sums": 0.5, "signs": 0.5})
    assert coefs(after) == [[2.0, None], [2.0, 2.0]], "4 tokens each"


def test_without_shares_nothing_is_weighed() -> None:
    group, _ = credited("sums", [3, 2])
    credits = GroupAdvantage().credit(group)
    word = {credits[0].segment: TeacherTargets(logprobs=np.zeros(3, np.float32), coef=2.0)}
    plain = Teaching(teachers={}, routing=ROUTING, task=True)
    items, metrics = plain.teach([(group, credits)], [word])
    assert (coefs(items), metrics) == ([[2.0, None]], {})
    shared = replace(plain, shares={"sums": 0.5, "signs": 0.5})
    items, metrics = shared.teach([(group, credits)], [word])
    assert set(metrics) == {"teacher/sums/weight", "teacher/signs/weight"}
