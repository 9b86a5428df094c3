"""A recipe that a tiny random model runs in seconds, with rewards that it can learn to earn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

REWARDS = '''
def vowels(completion, task):
    """The share of vowels: a random model earns a little, and can learn to earn more."""
    return sum(character in "aeiou" for character in completion) / max(1, len(completion))

def always_none(completion, task):
    return None

def none(completion, task):
    return 1.0 if completion == task.answer else None

def nan(completion, task):
    return 1.0 if completion == task.answer else float("nan")

def infinite(completion, task):
    return 1.0 if completion == task.answer else float("inf")

def text(completion, task):
    return 1.0 if completion == task.answer else "1"

def sometimes(completion, task):
    return None if "a" in completion else vowels(completion, task)
'''


def write_tiny_recipe(path: Path, *, model: Path) -> Path:
    """Writes a recipe to `path`, its rows and reward functions beside it; returns `path`."""
    folder = path.parent
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(4) for b in range(4)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)
    tree: dict[str, Any] = {
        "name": "tiny",
        "output_dir": str(folder / "runs"),
        "model": {"path": str(model), "dtype": "float32"},
        "tasks": {"kind": "jsonl", "path": str(folder / "sums.jsonl")},
        "verifier": {"kind": "function", "path": f"{folder / 'rewards.py'}:vowels"},
        "sampling": {"max_new_tokens": 8},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4},
        "optimizer": {"learning_rate": 0.01},
        "training": {"steps": 2},
        "evaluation": {"tasks": 4, "samples": 2},
    }
    path.write_text(yaml.safe_dump(tree))
    return path
