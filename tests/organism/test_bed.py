"""One function gives an organism, and gives the same one again without building it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.organism import bed, build
from benchmarks.organism.language import parse_problem
from benchmarks.organism.settings import Lesson, Misconception, OrganismSettings

import turnpoint as tp
from tests.organism.settings import TINY
from turnpoint.config import dump_recipe, load_recipe

OTHER: dict[str, Any] = {
    "steps": (2, 3),
    "misconceptions": (Misconception(operation="+8", shift=9, slip=0.9),),
    "slip": 0.3,
    "fillers": 0.0,
    "synonyms": 0.0,
    "layers": 1,
    "width": 64,
    "heads": 1,
    "inner": 32,
    "initial_scale": 0.1,
    "lessons": (Lesson(solutions=64),),
    "examples_per_step": 8,
    "warmup_steps": 1,
    "train_problems": 16,
    "held_out_problems": 4,
    "seed": 1,
}


@pytest.mark.parametrize("name", OrganismSettings.__dataclass_fields__)
def test_every_setting_names_another_organism(name: str) -> None:
    assert bed.fingerprint(replace(TINY, **{name: OTHER[name]})) != bed.fingerprint(TINY)
    assert bed.fingerprint(replace(TINY)) == bed.fingerprint(TINY)


def test_other_code_names_another_organism(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = bed.fingerprint(TINY)
    changed = tmp_path / "language.py"
    changed.write_text(Path(str(bed.language.__file__)).read_text() + "# changed\n")
    monkeypatch.setattr(bed.language, "__file__", str(changed))
    assert bed.fingerprint(TINY) != before


def test_the_build_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["build", "--help"])
    with pytest.raises(SystemExit) as ended:
        build.main()
    assert ended.value.code == 0
    assert "TURNPOINT_CACHE" in capsys.readouterr().out


@pytest.mark.slow
def test_an_organism_is_built_once_learns_and_can_be_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNPOINT_CACHE", str(tmp_path / "cache"))
    organism = bed.make_organism(TINY)
    monkeypatch.setattr(build, "build", None)  # from here on nothing may be built
    assert bed.make_organism(TINY) == organism

    rows = [json.loads(line) for line in organism.problems.read_text().splitlines()]
    assert len({row["question"] for row in rows}) == len(rows) == 40
    assert all(parse_problem(row["question"]).answer == row["answer"] for row in rows)

    (tmp_path / "recipe.yaml").write_text(dump_recipe(organism.recipe))
    short = ["training.steps=1", "rollout.prompts_per_step=2", "rollout.samples_per_prompt=4"]
    recipe = load_recipe(tmp_path / "recipe.yaml", [*short, f"output_dir={tmp_path / 'runs'}"])
    result = tp.train(recipe)
    assert result.before is not None
    assert result.before.greedy.truncated < 0.5  # it has learnt how a solution ends
    capsys.readouterr()
