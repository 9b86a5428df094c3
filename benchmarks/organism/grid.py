"""Algorithms x seeds on the organism, one process per core with one thread each.

    python -m benchmarks.organism.grid runs/grid.jsonl --arms grpo dapo --seeds 0 1 2 3 4
    python -m benchmarks.organism.summary runs/grid.jsonl

One JSON line per (arm, seed) is appended when its run ends; pairs that the file holds are not run again. All
runs start from the same model and are measured on the same held-out problems; `curve` holds accuracy,
greedy and at temperature 1, against tokens generated until then, so that arms are compared at equal tokens.
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
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.organism.arms import ARMS, OBJECTIVES, arm_recipe
from benchmarks.organism.bed import make_organism

_GENERATED = ("root", "suffix", "reflection", "discarded")  # kinds of tokens that were sampled


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path, help="JSON lines, appended to")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*OBJECTIVES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # for the processes to come
    make_organism()  # once, before many want it
    done = {(row["arm"], row["seed"]) for row in read_rows(options.output)}
    pairs = [pair for pair in itertools.product(options.arms, options.seeds) if pair not in done]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=spawn, max_tasks_per_child=1) as pool:
        futures: list[Future[dict[str, Any]]] = [
            pool.submit(run_one, arm, seed, steps=options.steps, every=options.every) for arm, seed in pairs
        ]
        for future in as_completed(futures):
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(future.result()) + "\n")


def run_one(arm: str, seed: int, *, steps: int, every: int) -> dict[str, Any]:
    """Trains one arm with one seed and returns its line."""
    import turnpoint as tp
    from benchmarks.common import facts

    recipe = arm_recipe(make_organism().recipe, ARMS[arm], seed=seed, steps=steps, every=every)
    began = time.process_time()
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        run = tp.train(recipe.model_copy(update={"output_dir": Path(folder)}))
        curve = list(read_curve(run.folder))
    seconds = round(time.process_time() - began, 1)
    return {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "before": curve[0],
        "after": curve[-1],
        "generated_tokens": curve[-1]["tokens"],
        "processor_seconds": seconds,
        "curve": curve,
        **facts(),
    }


def read_curve(run: Path) -> Iterator[dict[str, float]]:
    """Yields each evaluation of a run folder: step, tokens generated until then, accuracies."""
    from turnpoint.reports.run_log import read_lines, read_metrics

    steps = read_metrics(run / "metrics.jsonl")
    spent = [sum(step.metrics.get(f"tokens/{kind}", 0.0) for kind in _GENERATED) for step in steps]
    tokens = [0.0, *itertools.accumulate(spent)]
    for _, row in read_lines(run / "evaluations.jsonl"):
        yield {
            "step": row["step"],
            "tokens": tokens[row["step"]],
            "greedy": row["greedy"]["accuracy"],
            "sampled": row["sampled"]["accuracy"],
        }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a grid's file; none when there is no such file."""
    from turnpoint.reports.run_log import read_lines

    return [row for _, row in read_lines(path)] if path.exists() else []


if __name__ == "__main__":
    main()
