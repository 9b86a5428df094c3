"""What a run's problems are known by, and how a change of them is told."""

from __future__ import annotations

from dataclasses import replace

from tests.tasks.test_dataset import sums
from turnpoint.tasks import Fingerprints

EXAMPLES = (("1 + 1", "2"), ("2 + 2", "4"))
KNOWN = Fingerprints.of(EXAMPLES, sums().select(range(4)), sums().select([4, 5]))


def test_the_same_problems_are_no_change() -> None:
    assert KNOWN.change(Fingerprints.of(EXAMPLES, sums().select(range(4)), sums().select([4, 5]))) == ""


def test_every_kind_of_change_is_named() -> None:
    other = Fingerprints.of((("1 + 1", "3"), EXAMPLES[1]), sums().select([1, 0, 2, 3]), sums().select([5]))
    assert KNOWN.change(other) == (
        "2 few-shot examples as then, but other content or another order; "
        "4 problems to train on as then, but other content or another order; "
        "2 problems to evaluate then, 1 now"
    )
    assert KNOWN.change(replace(KNOWN, examples=other.examples)).startswith("2 few-shot examples")
