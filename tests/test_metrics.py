"""Metrics: the parts of a step, merged in any order and split, give the value of the whole step."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint import metrics
from turnpoint.metrics import (
    EffectiveShare,
    Max,
    Mean,
    Metric,
    Quantile,
    Ratio,
    Sum,
    merge_metrics,
    metric_values,
)

KINDS: dict[str, Callable[[list[float]], Metric]] = {
    "sum": lambda values: Sum(math.fsum(values)),
    "mean": Mean.of,
    "max": Max.of,
    "median": lambda values: Quantile(0.5, tuple(values)),
    "effective": lambda values: EffectiveShare.of(map(abs, values)),
}


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(metrics).failed == 0


@pytest.mark.parametrize("kind", KINDS)
@given(
    values=st.lists(st.integers(-1000, 1000).map(float), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_merging_parts_gives_the_whole(
    kind: str, values: list[float], cuts: list[int], order: Random
) -> None:
    make = KINDS[kind]
    shuffled = list(values)
    order.shuffle(shuffled)
    borders = [0, *sorted(min(cut, len(values)) for cut in cuts), len(values)]
    parts = [make(shuffled[a:b]) for a, b in itertools.pairwise(borders)]
    merged = merge_metrics({"x": part} for part in parts)
    assert metric_values(merged) == metric_values({"x": make(values)})


def test_values() -> None:
    assert metric_values({"a": Sum(0.0), "b": Mean(3.0, 2.0), "c": Max.of([-5.0, -2.0])}) == {
        "a": 0.0,
        "b": 1.5,
        "c": -2.0,
    }
    assert Quantile(0.9, (1.0, 2.0, 4.0)).value == pytest.approx(np.quantile([1, 2, 4], 0.9))
    assert isinstance(Ratio(6.0, 4.0), Mean)


def test_effective_share_of_equal_lone_and_vanished_weights() -> None:
    assert EffectiveShare.of([0.3] * 7).value == pytest.approx(1.0)
    assert EffectiveShare.of([5.0, 0.0, 0.0, 0.0]).value == 0.25
    assert EffectiveShare.of([1.0, 2.0]).value == 9 / 10
    assert EffectiveShare.of([0.0, 0.0]).value == 0.0


def test_a_mean_over_nothing_is_absent_and_dilutes_nothing() -> None:
    nothing: dict[str, Metric] = {
        "a": Mean(0.0, 0),
        "b": Mean.of([]),
        "c": Max(),
        "d": Quantile(0.5, ()),
        "e": Max.of([]),
        "f": EffectiveShare.of([]),
    }
    assert metric_values(nothing) == {}
    assert Mean.of([1.0, 1.0]).merge(Mean.of([])).value == 1.0


def test_names_of_all_parts_are_kept() -> None:
    merged = merge_metrics([{"a": Sum(1.0)}, {"b": Sum(2.0)}, {"a": Sum(3.0)}])
    assert merged == {"a": Sum(4.0), "b": Sum(2.0)}
    assert merge_metrics([]) == {}


def test_merging_leaves_the_parts_alone() -> None:
    part = {"a": Sum(1.0)}
    merge_metrics([part, part])
    assert part == {"a": Sum(1.0)}


def test_one_name_has_one_kind() -> None:
    with pytest.raises(TypeError, match="metric 'loss' is both Sum and Mean"):
        merge_metrics([{"loss": Sum(1.0)}, {"loss": Mean(1.0, 1.0)}])
    with pytest.raises(ValueError, match=r"cannot merge the 0\.5 and 0\.9 quantiles"):
        merge_metrics([{"q": Quantile(0.5, ())}, {"q": Quantile(0.9, ())}])
