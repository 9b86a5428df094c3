"""What the page on forking groups shows works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from turnpoint.config import parse_recipe

PAGE = (Path(__file__).parent.parent / "docs" / "branching.md").read_text(encoding="utf-8")
TASKS = {"tasks": {"kind": "jsonl", "path": "problems.jsonl"}}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_section_is_one_and_has_the_defaults() -> None:
    (section,) = blocks("yaml")
    shown = parse_recipe({**TASKS, **yaml.safe_load(section)})
    plain = parse_recipe({**TASKS, "rollout": {"samples_per_prompt": 16, "branching": {}}})
    assert shown == plain


@pytest.mark.parametrize("advantage", re.findall(r"^\| `(\{.*?\})`", PAGE, re.MULTILINE))
def test_the_credits_are_credits(advantage: str) -> None:
    assert parse_recipe({**TASKS, "advantage": yaml.safe_load(advantage)}).advantage


RULES = PAGE.partition("## What tokens")[0]


@pytest.mark.parametrize("rule", re.findall(r"^\| `(\w+)` \|", RULES, re.MULTILINE))
def test_the_rules_are_rules(rule: str) -> None:
    section = {"samples_per_prompt": 16, "branching": {"rule": {"kind": rule}}}
    branching = parse_recipe({**TASKS, "rollout": section}).rollout.branching
    assert branching is not None
    assert branching.rule.kind == rule


def test_the_core_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(code, {})
    first, _ = capsys.readouterr().out.splitlines()
    assert first == "[(1, 4), (4, 3)]"
    assert first in code
