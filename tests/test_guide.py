"""What the guide shows: its recipe is one, its keys are keys, its functions work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from turnpoint.config import load_recipe, parse_recipe
from turnpoint.types import Message, Task

GUIDE = (Path(__file__).parent.parent / "docs" / "guide.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_recipe_is_a_recipe() -> None:
    whole, verifier = (yaml.safe_load(block) for block in blocks("yaml"))
    assert parse_recipe(whole).name == "mine"
    assert parse_recipe({**whole, **verifier}).verifier.kind == "function"


def test_the_reward_function_judges() -> None:
    scope: dict[str, Any] = {}
    exec(blocks("python")[0], scope)
    task = Task(id="1", messages=(Message(role="user", content="17 + 25"),), answer="42")
    assert [scope["grade"](text, task) for text in ("it is 42", "41", "")] == [1.0, 0.0, 0.0]


def settings() -> list[str]:
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+`) \|$", GUIDE, re.MULTILINE)
    return [cell for row in rows for cell in re.findall("`([^`]+)`", row)]


@pytest.mark.parametrize("setting", settings())
def test_the_keys_of_the_table_change_the_recipe(tmp_path: Path, setting: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("tasks: {kind: jsonl, path: a}\n")
    key, _, value = setting.partition(": ")
    defaults = {"training.epochs": "2", "training.mini_batches": "2"}
    changed = load_recipe(recipe, [f"{key}={(value or defaults[key]).replace('N', '8')}"])
    assert changed != load_recipe(recipe)


def test_the_table_was_found() -> None:
    assert len(settings()) > 12
