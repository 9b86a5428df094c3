"""Whether one student keeps what two experts have learnt, each on problems of its own kind.

    python -m benchmarks.opd_merge runs/merge.jsonl [--arms even rare shares] [--seeds 0 1 2 3 4] [--steps 60]
    python -m benchmarks.opd_merge runs/merge.jsonl --summary

Both experts and the student begin as the organism's cold start (benchmarks/organism/specialists.py). The
student samples 16 problems x 4 a step, each scored by the expert that the problem's row names, and no reward
teaches. Problems of the kind `minus` are also shorter.

    even      as many problems of one kind as of the other
    rare      one problem of `minus` for seven of `plus`, as the batch comes
    shares    the same problems, and with half of a step's teaching for each (distill.teachers.NAME.share)

One JSON line per arm and seed: accuracy of each kind at temperature 1 after so many steps, and `kept`, the
student's gain over the cold start divided by the expert's on the same held-out problems. The summary has mean
and 95 % interval (Student's t over training seeds).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import turnpoint as tp
from benchmarks.common import emit, facts, mistakes
from benchmarks.organism.arms import Arm, arm_recipe
from benchmarks.organism.build import write_lines
from benchmarks.organism.grid import read_rows
from benchmarks.organism.specialists import (
    HELD_OUT,
    KINDS,
    make_specialist,
    on,
    problems_of,
    rows_of,
    specialist_folder,
)
from turnpoint.config.learning import GroupAdvantageConfig, ReinforceLoss
from turnpoint.reports.run_records import read_lines
from turnpoint.rollout.intervals import mean_interval
from turnpoint.speed.machine import usable_cores

_TRAINED = 2048  # problems
ARMS: Mapping[str, tuple[Mapping[str, int], float | None]] = {  # problems of eight, share of each teacher
    "even": ({"plus": 4, "minus": 4}, None),
    "rare": ({"plus": 7, "minus": 1}, None),
    "shares": ({"plus": 7, "minus": 1}, 0.5),
}


def main() -> None:
    """Runs what is missing, or says what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path, help="JSON lines, appended to")
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--summary", action="store_true", help="of the file; nothing is run")
    options = parser.parse_args()
    with mistakes(parser):
        rows = read_rows(options.output)
    if options.summary:
        for record in summarise(rows):
            emit(**record)
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # for the processes to come
    for kind in KINDS:
        make_specialist(kind)
    done = {(row["seed"], row["arm"]) for row in rows}
    pairs = [pair for pair in itertools.product(options.seeds, options.arms) if pair not in done]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(
        options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        futures: list[Future[dict[str, Any]]] = [
            pool.submit(run_one, arm, seed, steps=options.steps, every=options.every) for seed, arm in pairs
        ]
        for future in as_completed(futures):
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(future.result()) + "\n")


def run_one(name: str, seed: int, *, steps: int, every: int) -> dict[str, Any]:
    """Trains one student and returns its line."""
    _, share = ARMS[name]
    shared = {} if share is None else {"share": share}
    teachers = {
        kind: {"kind": "run", "path": str(specialist_folder(kind) / "run"), **shared} for kind in KINDS
    }
    arm = Arm(
        loss=ReinforceLoss(kind="reinforce"),
        advantage=GroupAdvantageConfig(),
        others={
            "distill": {"teachers": teachers, "key": "teacher", "task": False},
            "rollout": {"samples_per_prompt": 4},
            "evaluation": {"tasks": HELD_OUT * len(KINDS)},
        },
    )
    began = time.process_time()
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        problems = Path(folder) / "problems.jsonl"
        write_lines(problems, mixed(name, seed=seed))
        recipe = arm_recipe(on(problems), arm, seed=seed, steps=steps, every=every)
        run = tp.train(recipe.model_copy(update={"output_dir": Path(folder)}))
        curve = [
            {"step": row["step"], **_by_kind(row)} for _, row in read_lines(run.folder / "evaluations.jsonl")
        ]
    return {
        "arm": name,
        "seed": seed,
        "steps": steps,
        "kept": {kind: _kept(kind, curve[0][kind], curve[-1][kind]) for kind in KINDS},
        "curve": curve,
        "processor_seconds": round(time.process_time() - began, 1),
        **facts(),
    }


def mixed(arm: str, *, seed: int) -> list[dict[str, str]]:
    """Returns rows of both kinds in the arm's shares, shuffled, then those that nobody trains on."""
    held_out = [
        json.loads(line)
        for kind in KINDS
        for line in (specialist_folder(kind) / "problems.jsonl").read_text().splitlines()[-HELD_OUT:]
    ]
    asked = {row["question"] for row in held_out}
    rows = list[dict[str, str]]()
    for kind, eighths in ARMS[arm][0].items():
        new = (it for it in problems_of(kind, seed=1000 + seed) if it.question not in asked)
        rows += rows_of(kind, new, _TRAINED * eighths // 8)
    random.Random(seed).shuffle(rows)
    return rows + held_out


def _by_kind(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the accuracy of each kind at temperature 1; held-out problems are in the order of kinds."""
    rewards = [outcome["sampled"][0]["reward"] for outcome in row["outcomes"]]
    return {
        kind: statistics.fmean(rewards[index * HELD_OUT : (index + 1) * HELD_OUT])
        for index, kind in enumerate(KINDS)
    }


def _kept(kind: str, before: float, after: float) -> float:
    """Returns the student's gain as a share of the expert's."""
    lines = [row for _, row in read_lines(specialist_folder(kind) / "run" / "evaluations.jsonl")]
    first, last = (float(row["sampled"]["accuracy"]) for row in (lines[0], lines[-1]))
    return round((after - before) / (last - first), 4)


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one record per arm and kind."""
    found = list[dict[str, Any]]()
    for arm, kind in itertools.product(dict.fromkeys(row["arm"] for row in rows), KINDS):
        kept = [row["kept"][kind] for row in rows if row["arm"] == arm]
        interval = mean_interval(kept)
        curves = [row["curve"] for row in rows if row["arm"] == arm]
        found.append(
            {
                "arm": arm,
                "kind": kind,
                "seeds": len(kept),
                "kept": round(statistics.fmean(kept), 4),
                "kept_95": None if interval is None else [round(end, 4) for end in interval],
                "least": min(kept),
                "accuracy": round(statistics.fmean(curve[-1][kind] for curve in curves), 4),
            }
        )
    return found


if __name__ == "__main__":
    main()
