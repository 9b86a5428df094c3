"""What a run's problems are known by, and how a change of them is told."""

from __future__ import annotations

from tests.tasks.test_dataset import sums
from turnpoint.tasks import Fingerprint
from turnpoint.tasks.fingerprint import change

SHOTS, TRAIN, HELD_OUT = "few-shot examples", "problems to train on", "problems to evaluate"
KNOWN = {
    SHOTS: Fingerprint.of([b"1 + 1", b"2"]),
    TRAIN: Fingerprint.of_tasks(sums().select(range(4))),
    HELD_OUT: Fingerprint.of_tasks(sums().select([4, 5])),
}


def test_the_same_is_no_change() -> None:
    again = {**KNOWN, TRAIN: Fingerprint.of_tasks(sums().select(range(4)))}
    assert change(KNOWN, again) == ""


def test_every_kind_of_change_is_named() -> None:
    other = {
        SHOTS: Fingerprint.of([b"1 + 1", b"3"]),
        TRAIN: Fingerprint.of_tasks(sums().select([1, 0, 2, 3])),
        HELD_OUT: Fingerprint.of_tasks(sums().select([5])),
    }
    assert change(KNOWN, other) == (
        "2 few-shot examples as then, but other content or another order; "
        "4 problems to train on as then, but other content or another order; "
        "2 problems to evaluate then, 1 now"
    )
    assert change(KNOWN, {**KNOWN, SHOTS: other[SHOTS]}).startswith("2 few-shot examples as then")
    assert change({}, {SHOTS: other[SHOTS]}) == "0 few-shot examples then, 2 now"
    assert change(KNOWN, {**KNOWN, "more": Fingerprint.of(())}) == ""


def test_where_a_piece_ends_counts() -> None:
    assert Fingerprint.of([b"ab", b""]) != Fingerprint.of([b"a", b"b"]) != Fingerprint.of([b"", b"ab"])
