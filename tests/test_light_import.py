"""Importing turnpoint, its records, its recipes or the face of a folder loads nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
HEAVY = [
    "accelerate",
    "datasets",
    "gguf",
    "math_verify",
    "pandas",
    "peft",
    "pyarrow",
    "ray",
    "reasoning_gym",
    "sglang",
    "sympy",
    "tensorboard",
    "tokenizers",
    "torch",
    "trackio",
    "transformers",
    "triton",
    "trl",
    "vllm",
    "wandb",
]
FOLDERS = sorted(
    ".".join(path.parent.relative_to(SOURCE).parts) for path in SOURCE.rglob("turnpoint/**/__init__.py")
)
FILES = [
    "turnpoint.config",
    "turnpoint.errors",
    "turnpoint.metrics",
    "turnpoint.protocols",
    "turnpoint.types",
]

# In a process of its own, one module after the other, so that a failure names who loaded what.
PROBE = """
import importlib, json, sys
heavy, modules = json.loads(sys.argv[1])
loaded = {}
for module in modules:
    before = set(sys.modules)
    importlib.import_module(module)
    new = [name for name in heavy if name in sys.modules and name not in before]
    if new:
        loaded[module] = new
print(json.dumps(loaded))
"""


def heavy_loaded_by(modules: list[str]) -> dict[str, list[str]]:
    asked = json.dumps([HEAVY, modules])
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", PROBE, asked]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_is_light() -> None:
    assert "turnpoint" in FOLDERS
    assert "turnpoint.engine.adapters" in FOLDERS
    assert heavy_loaded_by([*FOLDERS, *FILES]) == {}


def test_commands_load_no_peft_before_an_adapter_is_asked_for() -> None:
    commands = [f"turnpoint.commands.{name}" for name in ("evaluate", "export", "train")]
    loaded = heavy_loaded_by([*commands, "turnpoint.models.adapter"])
    assert "torch" in loaded["turnpoint.commands.evaluate"]
    assert not [module for module, heavy in loaded.items() if "peft" in heavy]


def test_listing_public_names_is_light() -> None:
    probe = f"import sys, turnpoint; print('train' in dir(turnpoint), {{*{HEAVY}}} & {{*sys.modules}})"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


def test_a_heavy_import_is_seen() -> None:
    assert heavy_loaded_by(["turnpoint.types", "tokenizers"]) == {"tokenizers": ["tokenizers"]}
