"""Three steps of GRPO on a tiny organism, and what they came to: the reference of test_organism.

    python -m tests.golden.organism              # measures again and writes curve.json
    python -m tests.golden.organism --cold-start # trains the stored weights anew, too

The weights are stored, because a cold start comes out differently on every kind of processor; they are
rounded to bfloat16 to be small, and computed with in float32.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors.torch
from benchmarks.organism.bed import recipe
from benchmarks.organism.build import build, distinct_problems, write_lines
from benchmarks.organism.model import save_untrained

import turnpoint as tp
from tests.organism.settings import TINY
from turnpoint.config import RunConfig, parse_recipe

HERE = Path(__file__).parent
WEIGHTS, CURVE = HERE / "organism.safetensors", HERE / "curve.json"
_files: Any = safetensors.torch  # typed in part
FIGURES = ("reward", "loss", "grad_norm", "entropy", "length")


def write_recipe(folder: Path) -> RunConfig:
    """Writes model and problems into `folder` and returns the recipe of the run, three steps of 4 x 8."""
    save_untrained(folder / "model", TINY)
    weights = {name: weight.float() for name, weight in _files.load_file(WEIGHTS).items()}
    _files.save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    problems = islice(distinct_problems(random.Random(7), TINY), 16)
    write_lines(
        folder / "problems.jsonl", [{"question": it.question, "answer": it.answer} for it in problems]
    )
    base = recipe(TINY, model=folder / "model", problems=folder / "problems.jsonl")
    tree: dict[str, Any] = base.model_dump(mode="json")
    tree["model"]["dtype"] = "float32"
    tree["rollout"] |= {"prompts_per_step": 4, "samples_per_prompt": 8}
    tree["optimizer"]["learning_rate"] = 1e-3
    tree["training"]["steps"] = 3
    tree |= {"evaluation": None, "output_dir": str(folder / "runs")}
    return parse_recipe(tree)


def figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures of a step that are compared."""
    return {name: metrics[name] for name in FIGURES}


def cold_start() -> None:
    """Trains TINY and stores its weights."""
    with tempfile.TemporaryDirectory() as name:
        build(TINY, Path(name))
        weights = _files.load_file(Path(name) / "model" / "model.safetensors")
        _files.save_file({key: weight.bfloat16() for key, weight in weights.items()}, WEIGHTS)


def main() -> None:
    """Writes curve.json."""
    from turnpoint.reports.run_records import read_metrics

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cold-start", action="store_true")
    if parser.parse_args().cold_start:
        cold_start()
    folder = Path(tempfile.mkdtemp())
    run = tp.train(write_recipe(folder))
    curve = [figures(step.metrics) for step in read_metrics(run.folder / "metrics.jsonl")]
    CURVE.write_text(json.dumps(curve, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
