"""Algorithms x seeds on the organism, one process per core with one thread each.

    python -m benchmarks.organism.grid runs/grid.jsonl --arms grpo dapo --seeds 0 1 2 3 4
    python -m benchmarks.organism.summary runs/grid.jsonl

One JSON line per (arm, seed) is appended when its run ends; pairs that the file holds are not run again. All
runs start from the same model and are measured on the same held-out problems; `curve` holds accuracy,
greedy and at temperature 1, against steps, tokens generated and seconds until then, so that arms are
compared at equal cost, whichever is meant.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.common import mistakes
from benchmarks.organism.arms import ARMS, Arm, arm_recipe
from benchmarks.organism.bed import DEFAULT, make_organism
from benchmarks.organism.settings import OrganismSettings
from turnpoint.speed.machine import usable_cores

_GENERATED = ("root", "suffix", "reflection", "discarded")  # kinds of tokens that were sampled


def main() -> None:
    """Runs what is missing."""
    run_grid(ARMS, DEFAULT, description=__doc__.splitlines()[0] if __doc__ else "")


def run_grid(arms: Mapping[str, Arm], settings: OrganismSettings, *, description: str) -> None:
    """Runs those of `arms` that the command line asks for, on the organism of `settings`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("output", type=Path, help="JSON lines, appended to")
    parser.add_argument("--arms", nargs="+", choices=[*arms], default=[*arms])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--processes", type=int, default=usable_cores())
    options = parser.parse_args()
    if min(options.seeds) < 0:
        parser.error(f"--seeds {min(options.seeds)}: a seed is 0 or more")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # for the processes to come
    make_organism(settings)  # once, before many want it
    with mistakes(parser):
        done = {(row["arm"], row["seed"]) for row in read_rows(options.output)}
    pairs = [
        pair for pair in itertools.product(options.seeds, options.arms) if (pair[1], pair[0]) not in done
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=spawn, max_tasks_per_child=1) as pool:
        futures: list[Future[dict[str, Any]]] = [
            pool.submit(run_one, name, arms[name], settings, seed, steps=options.steps, every=options.every)
            for seed, name in pairs
        ]
        for future in as_completed(futures):
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(future.result()) + "\n")


def run_one(
    name: str, arm: Arm, settings: OrganismSettings, seed: int, *, steps: int, every: int
) -> dict[str, Any]:
    """Trains one arm with one seed and returns its line."""
    from benchmarks.common import facts

    recipe = arm_recipe(make_organism(settings).recipe, arm, seed=seed, steps=steps, every=every)
    began, processor = time.perf_counter(), time.process_time()
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        run = arm.train(recipe.model_copy(update={"output_dir": Path(folder)}))
        seconds = time.process_time() - processor
        curve = read_curve(run.folder, share=seconds / (time.perf_counter() - began))
    return {
        "arm": name,
        "seed": seed,
        "steps": steps,
        "before": curve[0],
        "after": curve[-1],
        "generated_tokens": curve[-1]["tokens"],
        "processor_seconds": round(seconds, 1),
        "curve": curve,
        **facts(),
    }


def read_curve(run: Path, *, share: float) -> list[dict[str, float]]:
    """Returns the evaluations of a run folder: step, what was spent on steps until then, accuracies.

    `share` of a core is what the run had; seconds by the clock times that are processor seconds, about.
    """
    from turnpoint.reports.run_records import read_lines, read_metrics

    steps = read_metrics(run / "metrics.jsonl")
    spent = [sum(step.metrics.get(f"tokens/{kind}", 0.0) for kind in _GENERATED) for step in steps]
    tokens = [0.0, *itertools.accumulate(spent)]
    clock = [0.0, *itertools.accumulate(step.wall_seconds for step in steps)]
    curve: list[dict[str, float]] = []
    for _, row in read_lines(run / "evaluations.jsonl"):
        at = int(row["step"])
        point = {"step": at, "tokens": tokens[at], "seconds": round(clock[at] * share, 1)}
        curve.append(point | {kind: row[kind]["accuracy"] for kind in ("greedy", "sampled")})
    return curve


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a grid's file; none when there is no such file."""
    from turnpoint.reports.run_records import read_lines

    return [row for _, row in read_lines(path)] if path.exists() else []


if __name__ == "__main__":
    main()
