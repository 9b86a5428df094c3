"""Scores, selection and allocation: hand values, and a search over all choices as the reference."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.branching import allocate_continuations, hindsight_scores, select_branch_points
from turnpoint.branching.scores import DIRECTIONS, directed_scores

NAN, INF = float("nan"), float("inf")


# --- scores -------------------------------------------------------------------------------------


def directed(base: list[float], told: list[float], **options: object) -> list[float]:
    return directed_scores(
        base_logprobs=torch.tensor(base, dtype=torch.float64),
        hindsight_logprobs=torch.tensor(told, dtype=torch.float64),
        **options,  # type: ignore[arg-type]
    ).tolist()


def test_scores_by_hand() -> None:
    base, told = [-0.5, -0.5, -2.0], [-3.5, -0.25, -2.0]
    assert directed(base, told) == [3.0, 0.25, 0.0]
    assert directed(base, told, direction="signed") == [3.0, -0.25, -0.0]
    assert directed(base, told, direction="decrease") == pytest.approx([3.0, NAN, NAN], nan_ok=True)
    weighted = directed(base, told, weigh_alternatives=True)
    assert weighted == pytest.approx([3 * (1 - math.exp(-0.5)), 0.25 * (1 - math.exp(-0.5)), 0.0])
    assert directed([0.0], [-4.0], weigh_alternatives=True) == [0.0]  # a sure token is drawn again
    assert directed([1e-7], [-4.0], weigh_alternatives=True) == [0.0]  # rounding makes no negative mass


def test_what_has_no_number_is_never_chosen() -> None:
    scores = directed([-1.0, -INF, -INF, NAN, -1.0], [-INF, -1.0, -INF, -1.0, -2.0])
    assert scores == pytest.approx([NAN, NAN, NAN, NAN, 1.0], nan_ok=True)
    assert select_branch_points(scores, count=5) == [4]


def test_no_hindsight_no_score() -> None:
    base = torch.randn(9)
    assert hindsight_scores(base_logprobs=base, hindsight_logprobs=base.clone()).tolist() == [0.0] * 9


def test_scores_do_not_train() -> None:
    base, told = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    for direction in DIRECTIONS:
        scores = directed_scores(
            base_logprobs=base, hindsight_logprobs=told, direction=direction, weigh_alternatives=True
        )
        assert not scores.requires_grad


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown direction 'up'; known: absolute, signed, decrease"):
        directed([0.0], [0.0], direction="up")


# --- selection ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "options", "expected"),
    [
        ([1.0, 3.0, 2.0], {"count": 2}, [1, 2]),
        ([1.0, 3.0, 2.0], {"count": 2, "min_gap": 2}, [1]),
        ([1.0, 3.0, 2.0, 0.0], {"count": 2, "min_gap": 2}, [1, 3]),
        ([2.0, 2.0, 2.0], {"count": 2}, [0, 1]),  # ties: the earlier
        ([0.0] * 5, {"count": 3, "min_gap": 2}, [0, 2, 4]),
        ([9.0, 1.0, 2.0, 9.0], {"count": 2, "skip_first": 1, "skip_last": 1}, [2, 1]),
        ([9.0, 1.0], {"count": 2, "candidates": [False, True]}, [1]),
        ([NAN, 1.0, NAN], {"count": 3}, [1]),
        ([NAN, NAN], {"count": 1}, []),
        ([-INF, INF, 0.0], {"count": 3}, [1, 2, 0]),
        ([1.0], {"count": 1, "skip_first": 1}, []),
        ([1.0], {"count": 0}, []),
        ([1.0, 2.0], {"count": 2, "skip_last": 9}, []),
        ([], {"count": 2}, []),
    ],
)
def test_points_by_hand(scores: list[float], options: dict[str, object], expected: list[int]) -> None:
    assert select_branch_points(scores, **options) == expected  # type: ignore[arg-type]


@given(
    scores=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, NAN]), max_size=7),
    count=st.integers(0, 4),
    gap=st.integers(1, 4),
    first=st.integers(0, 3),
    last=st.integers(0, 3),
    data=st.data(),
)
def test_it_is_the_greedy_choice(
    scores: list[float], count: int, gap: int, first: int, last: int, data: st.DataObject
) -> None:
    """Each point has the largest score of all that is allowed after those before it; it stops only then."""
    mask = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    chosen = select_branch_points(
        scores, count=count, candidates=mask, min_gap=gap, skip_first=first, skip_last=last
    )
    allowed = {
        index
        for index, score in enumerate(scores)
        if mask[index] and first <= index < len(scores) - last and not math.isnan(score)
    }
    for index in range(count):
        left = [it for it in allowed if all(abs(it - other) >= gap for other in chosen[:index])]
        if not left:
            assert len(chosen) == index
            break
        assert chosen[index] == min(left, key=lambda it: (-scores[it], it))
    for one, other in itertools.combinations(chosen, 2):
        assert abs(one - other) >= gap


@pytest.mark.parametrize(
    "options", [{"count": -1}, {"min_gap": 0}, {"skip_first": -1}, {"skip_last": -1}, {"candidates": [True]}]
)
def test_impossible_arguments_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        select_branch_points([1.0, 2.0], **{"count": 1, **options})  # type: ignore[arg-type]


# --- allocation ---------------------------------------------------------------------------------


@given(total=st.integers(0, 40), points=st.integers(0, 9))
def test_shares_are_even_and_the_best_gets_more(total: int, points: int) -> None:
    shares = allocate_continuations(total, points)
    assert len(shares) == points
    assert shares == sorted(shares, reverse=True)
    if points:
        assert sum(shares) == total
        assert shares[0] - shares[-1] <= 1


def test_negative_numbers_are_refused() -> None:
    for arguments in ((-1, 2), (2, -1)):
        with pytest.raises(ValueError, match="cannot share"):
            allocate_continuations(*arguments)
