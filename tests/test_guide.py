"""What the guide shows: its recipes are recipes, its keys are keys, its functions and snippets work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import turnpoint as tp
from tests.tiny import save_tiny_model
from turnpoint.config import load_recipe, parse_draft_recipe, parse_recipe, parse_sft_recipe
from turnpoint.types import Message, Task

GUIDE = (Path(__file__).parent.parent / "docs" / "guide.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


WHOLE, VERIFIER, COLD, TEACHER, SEVERAL, SERVER, HEADS, DRAFTED, TRACKERS = (
    yaml.safe_load(block) for block in blocks("yaml")
)
GRADE, READING, FACE, GOING_ON = blocks("python")

# Right for gold; else one recipe learns from half of the texts, the other from none.
JUDGE = """
def parity(completion, task):
    return 1.0 if completion == task.answer else float(sum(map(ord, completion)) % 2)

def never(completion, task):
    return float(completion == task.answer)
"""


def test_the_recipes_are_recipes() -> None:
    assert parse_recipe(WHOLE).name == "mine"
    assert parse_recipe({**WHOLE, **VERIFIER}).verifier.kind == "function"
    assert parse_sft_recipe(COLD).prompt == parse_recipe(WHOLE).prompt
    for teacher in (TEACHER, SERVER):
        taught = parse_recipe({**WHOLE, **teacher}).distill
        assert taught is not None
        assert list(taught.teachers) == ["big"]
    several = parse_recipe({**WHOLE, **SEVERAL}).distill
    assert several is not None
    assert several.chosen == ("chain_sum", "gcd")
    assert parse_draft_recipe(HEADS).depth == 3
    assert parse_recipe({**WHOLE, **DRAFTED}).engine.draft is not None
    trackers = parse_recipe({**WHOLE, **TRACKERS}).trackers
    assert None not in (trackers.tensorboard, trackers.trackio, trackers.wandb)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the files that the guide names; recipes are the guide's, made tiny."""
    monkeypatch.chdir(tmp_path)
    sums = [(a, b) for a in range(5) for b in range(5)]
    rows = [{"question": f"{a} + {b}", "answer": str(a + b), "work": f"{b}+{a}"} for a, b in sums]
    for name in ("problems.jsonl", "solved.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "judge.py").write_text(JUDGE)
    model = {"model": {"path": str(save_tiny_model(tmp_path / "model")), "dtype": "float32"}}
    changes = {
        "verifier": {"kind": "function", "path": "judge.py:parity"},
        "sampling": {"max_new_tokens": 4},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 4},
        "training": {"steps": 20, "save_every": 20},
        "evaluation": {"tasks": 2, "samples": 0},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**WHOLE, **model, **changes}))
    changes = {"training": {"examples_per_step": 8}, "held_out": 4}
    (tmp_path / "cold.yaml").write_text(yaml.safe_dump({**COLD, **model, **changes}))
    return tmp_path


def test_a_run_is_read_also_where_a_step_taught_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["training.steps=1", "evaluation=null", "verifier.path=judge.py:never"]
    assert tp.train(load_recipe("mine.yaml", short)).folder.name == "mine"
    capsys.readouterr()
    exec(READING, {})
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "1 0.0 None"
    assert len(others) >= 8


@pytest.mark.slow
def test_the_python_face(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    exec(FACE, scope)
    assert (folder / "runs" / "kept" / "evaluations.jsonl").exists()
    exec(GOING_ON, scope)
    assert "step 22/22" in capsys.readouterr().out


def test_the_reward_function_judges() -> None:
    scope: dict[str, Any] = {}
    exec(GRADE, scope)
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
