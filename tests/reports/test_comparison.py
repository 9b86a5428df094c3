"""Tests against enumeration, and sentences that claim no more than they can."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports.samples import make_evaluation
from turnpoint.reports.comparison import (
    against_majority,
    compare,
    entropy_collapse,
    examination_cost,
    mcnemar_test,
    reward_trend,
    run_verdict,
    sign_flip_test,
)


def test_mcnemar_by_hand() -> None:
    assert mcnemar_test(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_test(8, 1) == pytest.approx(2 * (1 + 9) / 512)
    assert mcnemar_test(3, 3) == 1.0
    assert mcnemar_test(0, 0) == 1.0


@given(st.integers(0, 7), st.integers(0, 7))
def test_mcnemar_is_the_sign_flip_test_of_ones(gained: int, lost: int) -> None:
    moves = [1.0] * gained + [-1.0] * lost + [0.0] * 3
    assert mcnemar_test(gained, lost) == pytest.approx(sign_flip_test(moves))
    assert mcnemar_test(gained, lost) == mcnemar_test(lost, gained)


def test_sign_flips_by_enumeration() -> None:
    moves = [0.3, -0.1, 0.25, 0.5, 0.0]
    sums = [
        abs(sum(sign * move for sign, move in zip(signs, moves, strict=True)))
        for signs in itertools.product((-1, 1), repeat=5)
    ]
    expected = np.mean([total >= abs(sum(moves)) - 1e-12 for total in sums])
    assert sign_flip_test(moves) == pytest.approx(expected)


def test_sign_flips_of_nothing() -> None:
    assert sign_flip_test([]) == 1.0
    assert sign_flip_test([0.0, 0.0]) == 1.0


def test_drawn_flips_agree_with_mcnemar_and_repeat() -> None:
    moves = [1.0] * 20 + [-1.0] * 8
    assert sign_flip_test(moves) == pytest.approx(mcnemar_test(20, 8), abs=0.006)
    assert sign_flip_test(moves) == sign_flip_test(moves)


def test_drawn_flips_never_say_impossible() -> None:
    assert 0 < sign_flip_test([1.0] * 60) < 1e-4


def test_false_alarms_are_as_rare_as_promised() -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(300):
        moves = (rng.binomial(4, 0.4, 10) - rng.binomial(4, 0.4, 10)) / 4
        alarms += sign_flip_test(moves.tolist()) < 0.05
    assert alarms / 300 < 0.08


def texts(*arguments: object, **named: float) -> list[str]:
    first, last = arguments
    return [finding.text for finding in compare(first, last)]  # type: ignore[arg-type]


def test_a_clear_gain() -> None:
    lines = texts(make_evaluation([0.0] * 10 + [1.0] * 2), make_evaluation([1.0] * 10 + [1.0, 0.0]))
    assert lines[0] == (
        "improved: greedy accuracy 16.7 % (95 %: 5-45) -> 91.7 % (95 %: 65-99) on the same 12 problems: "
        "10 up, 1 down; p = 0.012, exact McNemar test"
    )


def test_a_small_gain_is_not_called_one() -> None:
    lines = texts(make_evaluation([0.0] * 9 + [1.0] * 3), make_evaluation([1.0] * 3 + [0.0] * 7 + [1.0] * 2))
    assert lines[0].startswith("no significant change: greedy accuracy 25.0 %")
    assert "3 up, 1 down; p = 0.62" in lines[0]


def test_a_loss_is_a_warning() -> None:
    found = compare(make_evaluation([1.0] * 8), make_evaluation([0.0] * 8))[0]
    assert found.text.startswith("worse: ")
    assert found.warning


def test_samples_are_compared_problem_by_problem() -> None:
    before = make_evaluation([0.0] * 6, [[0.0, 0.0, 0.0, 1.0]] * 6)
    after = make_evaluation([0.0] * 6, [[0.0, 1.0, 1.0, 1.0]] * 6)
    lines = texts(before, after)
    assert lines[0].startswith("no significant change: greedy accuracy 0.0 %")
    assert lines[1].startswith("improved: avg@4 25.0 %")
    assert lines[1].endswith("6 up, 0 down; p = 0.031, paired permutation test")


def test_partial_rewards_are_compared_too() -> None:
    lines = texts(make_evaluation([0.1] * 8), make_evaluation([0.6] * 8))
    assert lines[0].startswith("no significant change: greedy accuracy 0.0 %")
    assert lines[1] == (
        "improved: mean reward 0.100 -> 0.600 on the same 8 problems; p = 0.0078, paired permutation test"
    )


def test_only_problems_valid_in_both_are_compared() -> None:
    before = make_evaluation(["broken", 0.0, 0.0])
    after = make_evaluation([1.0, "broken", 0.0])
    assert "on the same 1 problem:" in texts(before, after)[0]


def test_nothing_valid_is_said() -> None:
    lines = texts(make_evaluation(["broken"]), make_evaluation(["broken"]))
    assert lines[0] == "greedy accuracy: nothing to compare, no attempt is valid"


def test_no_common_problem_is_an_error() -> None:
    empty = make_evaluation([])
    with pytest.raises(ValueError, match="in common"):
        compare(make_evaluation([1.0]), empty)


def test_the_last_line_says_what_was_not_measured() -> None:
    assert "not of seeds" in texts(make_evaluation([1.0]), make_evaluation([1.0]))[-1]


def test_the_majority_answer_must_be_beaten_by_the_interval() -> None:
    better = against_majority(make_evaluation([1.0] * 12 + [0.0] * 4, majority=0.3))
    assert better.text == 'greedy accuracy 75.0 % (95 %: 51-90) is above always answering "7" (30.0 %)'
    assert not better.warning
    unclear = against_majority(make_evaluation([1.0] * 12 + [0.0] * 4, majority=0.55))
    assert 'is not shown to beat always answering "7" (55.0 %)' in unclear.text
    assert unclear.warning


def trend(rewards: list[float]) -> str | None:
    found = reward_trend(rewards)
    return found and found.text


def test_a_trend_needs_steps() -> None:
    assert trend([0.0, 1.0] * 4) is None


def test_a_trend_beyond_the_spread() -> None:
    rising = [0.3 + 0.01 * step + 0.02 * (step % 2) for step in range(20)]
    assert trend(rising) == "training reward rose from 0.328 (first 5 steps) to 0.482 (last 5 steps)"
    falling = trend(rising[::-1])
    assert falling is not None
    assert falling.startswith("training reward fell")


def test_a_trend_within_the_spread() -> None:
    rewards = [0.5 + 0.3 * math.cos(1 + 2.1 * step) + 0.001 * step for step in range(24)]
    found = trend(rewards)
    assert found is not None
    assert found.endswith(": within the spread between steps")


def test_entropy_collapse() -> None:
    falling = [0.8] * 5 + [0.3] * 5 + [0.05] * 5
    found = entropy_collapse(falling)
    assert found is not None
    assert found.text == "entropy fell from 0.8 to 0.05 nats per token: little is explored any more"
    assert entropy_collapse([0.8] * 10 + [0.3] * 5) is None
    assert entropy_collapse([0.8, 0.0]) is None


def test_what_examinations_took_is_summed_over_the_steps_that_had_any() -> None:
    costly = {"seconds/reflect": 40.0, "seconds/score": 2.0, "seconds/examination_share": 0.5}
    free = {"seconds/reflect": 0.0, "seconds/score": 0.0, "seconds/examination_share": 0.0}
    found = examination_cost([costly, {**costly, "seconds/examination_share": 0.3}, free, {"reward": 1.0}])
    assert found is not None
    assert found.text == (
        "reflections took 1 min 20 s and scoring 4.0 s, summed over roots, which overlap: 40 % of a root's "
        "time in rollouts"
    )
    assert not found.warning
    assert examination_cost([free, {"reward": 1.0}]) is None
    assert found in run_verdict([costly, {**costly, "seconds/examination_share": 0.3}], {})
