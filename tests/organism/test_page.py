"""What docs/organism.md shows works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.organism import arms, bed
from benchmarks.organism.settings import OrganismSettings

from turnpoint.config import load_recipe

PAGE = (Path(__file__).parent.parent.parent / "docs" / "organism.md").read_text(encoding="utf-8")
GETTING, ARM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BASE = bed.recipe(OrganismSettings(), model=Path("/model"), problems=Path("/problems.jsonl"))


def test_the_recipe_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(settings: OrganismSettings) -> Any:
        assert settings == OrganismSettings()
        return SimpleNamespace(recipe=BASE)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bed, "make_organism", made)
    exec(GETTING, {})
    assert load_recipe("organism.yaml") == BASE
    (override,) = re.findall(r"`turnpoint train organism.yaml ([^`]+)`", PAGE)
    assert load_recipe("organism.yaml", shlex.split(override)).loss.kind == "gspo"


def test_the_arm_is_one() -> None:
    (arm,) = eval("{" + ARM + "}", dict(vars(arms))).values()
    assert arms.arm_recipe(BASE, arm, seed=0, steps=60, every=10).optimizer.learning_rate == 3e-4


def test_the_arms_that_are_named_are_there() -> None:
    (said,) = re.findall(r"other fields; (.*?) are there", PAGE, re.DOTALL)
    assert re.findall("`([a-z_]+)`", said) == [*arms.ARMS]
