"""The beds and summaries of the draft benchmarks, by hand and by running what they teach."""

from __future__ import annotations

import re
from typing import Any

import pytest
from benchmarks.draft_losses import summarise
from benchmarks.drafts.structured import KINDS, examples
from benchmarks.entropy_slope import Point, slope


def test_arithmetic_is_right_and_functions_run() -> None:
    taught = examples(60, seed=3)
    assert [it.kind for it in taught[:3]] == [*KINDS]
    for it in taught:
        if it.kind == "arithmetic":
            for line in it.answer.splitlines()[:-1]:
                left, right = line.split(" = ")
                assert eval(left) == int(right)
        if it.kind == "code":
            space: dict[str, Any] = {}
            exec(it.answer, space)
            name = re.findall(r"def (\w+)", it.answer)[0]
            assert name in it.question
            space[name]([3, -4, 12, 7, 0])
    assert examples(60, seed=3) == taught
    assert examples(3, seed=4) != taught[:3]


def test_points_over_cross_entropy_are_by_seed() -> None:
    def row(loss: str, seed: int, shares: list[float]) -> dict[str, Any]:
        figures = {"rejection": shares, "target_only": [0.5, 0.5], "tokens_per_round": 2.0}
        return {"bed": "organism", "loss": loss, "seed": seed, **figures}

    rows = [
        row("cross_entropy", 0, [0.5, 0.7]),
        row("cross_entropy", 1, [0.7, 0.9]),
        row("tv", 0, [0.6, 0.7]),
        row("tv", 1, [0.7, 0.93]),
    ]
    _, tv = summarise(rows)
    assert (tv["loss"], tv["seeds"]) == ("tv", 2)
    assert tv["rejection_points"] == pytest.approx((5 + 1.5) / 2)
    assert tv["target_only_points"] == 0
    with pytest.raises(ValueError, match="holds no line"):
        summarise([])


def test_slope_of_points_on_a_line() -> None:
    points = [
        Point(over="run", at=at, entropy=nats, tokens_per_round=4 - 1.5 * nats, acceptance=())
        for at, nats in enumerate([0.2, 0.5, 0.9])
    ]
    assert slope(points) == pytest.approx(-1.5)
