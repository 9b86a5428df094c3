"""Pass rates in words and bars, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.reports.pass_rates import histogram, spread, wider


def test_by_hand() -> None:
    rates = [0.0] * 8 + [0.25] * 4 + [1 / 3] + [0.75, 1.0, 1.0]
    assert histogram(rates, samples=4, minimum=0.3, maximum=0.9) == [
        "never      8  50 %  ########################################",
        "25 %   *   5  31 %  #########################",
        "50 %       0   0 %",
        "75 %   *   1   6 %  #####",
        "always     2  12 %  ##########",
    ]


def test_one_sample_knows_only_never_and_always() -> None:
    names = [line.split()[0] for line in histogram([0.0, 1.0, 1.0], samples=1, minimum=0, maximum=1)]
    assert names == ["never", "always"]


@given(
    rates=st.lists(st.sampled_from([i / n for n in range(1, 9) for i in range(n + 1)]), min_size=1),
    samples=st.integers(8, 64),
)
def test_all_problems_are_counted_and_ends_are_exact(rates: list[float], samples: int) -> None:
    lines = histogram(rates, samples=samples, minimum=2.0, maximum=3.0)  # nothing is within the range
    counts = [int(line.replace("%", " ").split()[1]) for line in lines]
    assert sum(counts) == len(rates)
    assert counts[0] == sum(rate == 0 for rate in rates)
    assert counts[-1] == sum(rate == 1 for rate in rates)


def test_words() -> None:
    assert spread([0.0, 0.1, 1.0, 1.0]) == "25 % never solved, 50 % always, 25 % in between"


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([0.0, 0.05, 0.05, 0.99, 1.0], "--min 0.05 --max 0.9 would keep 2 problems"),
        ([0.0, 0.01, 0.95, 1.0], "--min 0.1 --max 0.95 would keep 1 problem"),
        ([0.0, 1.0], "no problem is solved sometimes: more samples, easier problems or a better policy"),
    ],
)
def test_the_nearest_range_that_keeps_something(rates: list[float], words: str) -> None:
    assert wider(rates, minimum=0.1, maximum=0.9).startswith(words)
