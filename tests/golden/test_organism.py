"""A whole run, sampled, judged and learnt from, gives the figures it gave before.

In float32 and with draws that depend on nothing but the seed, processors differ only in how they round.
Weights disturbed by 1e-6 of their size move losses (differences of large sums) by up to 3e-5, the other
figures by up to 3e-6, and no draw: with these weights and this seed none is that near to a border, nor at
1e-5. A tolerance of 1e-3 leaves room for that and none for another formula.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import turnpoint as tp
from tests.golden.organism import CURVE, FIGURES, figures, write_recipe
from turnpoint.credit import GroupAdvantage
from turnpoint.reports.run_records import read_metrics
from turnpoint.rollout import read_groups

TOLERANCE = 1e-3  # relative


def test_three_steps_give_the_stored_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tp.train(write_recipe(tmp_path))
    capsys.readouterr()
    steps = [figures(step.metrics) for step in read_metrics(run.folder / "metrics.jsonl")]
    expected = json.loads(CURVE.read_text(encoding="utf-8"))
    assert len(steps) == len(expected) == 3
    for step, stored in zip(steps, expected, strict=True):
        assert set(stored) == set(FIGURES)
        assert step == pytest.approx(stored, rel=TOLERANCE)
    moved = {float(figure) for figure in (steps[0]["entropy"], steps[1]["entropy"], steps[2]["entropy"])}
    assert len(moved) == 3

    groups = list(read_groups(run.folder / "rollouts.jsonl"))
    for step in (1, 2, 3):
        mine = [group for group in groups if group.id.startswith(f"{step}/")]
        assert len(mine) == 4
        credits = [credit for group in mine for credit in GroupAdvantage().credit(group)]
        assert any(credit.advantages is not None and credit.advantages.any() for credit in credits)
