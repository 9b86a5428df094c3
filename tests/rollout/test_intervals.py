"""Intervals against hand values, limits, and their own promise: coverage."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnpoint.rollout.intervals import clustered_interval, mean_interval, t_quantile, wilson_interval


def test_wilson_of_hand_values() -> None:
    assert wilson_interval(0.5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert wilson_interval(0.1, 50) == pytest.approx((0.04348, 0.21360), abs=1e-5)


def test_wilson_keeps_a_width_where_all_outcomes_are_equal() -> None:
    z2 = 1.959963984540054**2
    assert wilson_interval(0.0, 20) == pytest.approx((0.0, z2 / (20 + z2)))
    assert wilson_interval(1.0, 20) == pytest.approx((20 / (20 + z2), 1.0))


def test_wilson_covers_the_true_share() -> None:
    count = 40
    coverages: list[float] = []
    for share in np.linspace(0.05, 0.95, 19):
        covered = 0.0
        for hits in range(count + 1):
            low, high = wilson_interval(hits / count, count)
            if low <= share <= high:
                covered += math.comb(count, hits) * share**hits * (1 - share) ** (count - hits)
        coverages.append(covered)
    assert statistics.fmean(coverages) == pytest.approx(0.95, abs=0.01)
    assert min(coverages) > 0.92


def test_no_trials_and_no_problems_are_errors() -> None:
    with pytest.raises(ValueError, match="trials"):
        wilson_interval(0.5, 0)
    with pytest.raises(ValueError, match="problems"):
        clustered_interval([])


def test_one_outcome_per_problem_is_wilson() -> None:
    outcomes = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert clustered_interval([[outcome] for outcome in outcomes]) == pytest.approx(wilson_interval(3 / 7, 7))


def test_samples_that_always_agree_add_nothing() -> None:
    problems = [[1.0] * 8, [0.0] * 8, [0.0] * 8]
    assert clustered_interval(problems) == pytest.approx(wilson_interval(1 / 3, 3))


def test_problems_of_equal_difficulty_count_every_sample() -> None:
    problems = [[1.0, 0.0, 0.0, 0.0]] * 6
    assert clustered_interval(problems) == pytest.approx(wilson_interval(0.25, 24))


def test_a_problem_with_few_samples_says_less_although_it_weighs_the_same() -> None:
    """Var(mean of C means) = p (1 - p) / C^2 x sum of 1 / n_c, even if all outcomes are independent."""
    problems = [[1.0, 0.0], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]]
    assert clustered_interval(problems) == pytest.approx(wilson_interval(0.5, 4 / (1 / 2 + 1 / 6)))


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), min_size=1, max_size=12))
def test_the_effective_size_lies_between_problems_and_samples(problems: list[list[float]]) -> None:
    share = statistics.fmean(map(statistics.fmean, problems))
    low, high = clustered_interval(problems)
    widest = wilson_interval(share, len(problems))
    narrowest = wilson_interval(share, sum(map(len, problems)))
    assert 0 <= low <= share <= high <= 1
    assert narrowest[1] - narrowest[0] - 1e-9 <= high - low <= widest[1] - widest[0] + 1e-9


def test_clustering_is_what_keeps_the_promise() -> None:
    rng = np.random.default_rng(0)
    problems, samples, runs = 40, 8, 400
    covered = ignored = 0
    for _ in range(runs):
        easy = rng.random(problems) < 0.5
        hits = rng.random((problems, samples)) < np.where(easy, 0.9, 0.1)[:, None]
        low, high = clustered_interval(hits.astype(float).tolist())
        covered += low <= 0.5 <= high
        low, high = wilson_interval(float(hits.mean()), problems * samples)
        ignored += low <= 0.5 <= high
    assert covered / runs > 0.92
    assert ignored / runs < 0.75  # what calling the samples independent would have promised as 95 %


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (30, 2.0423), (1000, 1.9623)],
)
def test_t_quantiles_of_the_tables(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, rel=1.2e-3)


def test_mean_interval_by_hand() -> None:
    low, high = mean_interval([0.0, 1.0, 2.0, 3.0]) or (math.nan, math.nan)
    assert (low + high) / 2 == 1.5
    assert (high - low) / 2 == pytest.approx(3.1824 * math.sqrt(5 / 3) / 2, rel=2e-3)
    assert mean_interval([1.0]) is None


@settings(max_examples=30)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(-5, 5))
def test_mean_interval_moves_with_its_values(values: list[float], shift: float) -> None:
    low, high = mean_interval(values) or (math.nan, math.nan)
    moved = mean_interval([value + shift for value in values])
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-6)
