"""What a grid found: mean and 95 % interval over seeds of each arm, at equal cost.

    python -m benchmarks.organism.summary runs/grid.jsonl [--by tokens] [--at 1000000] [--against grpo]

Cost is generated tokens, steps of the run (`step`) or processor seconds spent on steps (`seconds`). Accuracy
at a cost is interpolated between the two evaluations around it; without --at it is the largest cost that
every run has reached. With --against each arm is also compared with that one, seed by seed. Intervals are
Student's t over training seeds: they say how far seeds differ, on one set of held-out problems and one
cold start.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import emit, mistakes
from turnpoint.reports.run_records import read_lines
from turnpoint.rollout.intervals import mean_interval

COSTS = ("tokens", "step", "seconds")


def summarise(
    rows: Sequence[Mapping[str, Any]],
    at: float | None = None,
    *,
    by: str = "tokens",
    against: str | None = None,
) -> list[dict[str, Any]]:
    """Returns one record per arm, best first, `at` a cost counted `by` one of `COSTS`.

    `gain` is the accuracy at temperature 1 minus that before training; `over` that minus the one of
    `against`, over the seeds that both have. Raises ValueError for more than a run has spent, without rows,
    and for an arm that is not there.
    """
    if not rows:
        raise ValueError("the grid's file holds no line yet")
    names = [*dict.fromkeys(row["arm"] for row in rows)]
    if against is not None and against not in names:
        raise ValueError(f"--against {against}: no such arm, there are {', '.join(names)}")
    common = min(float(row["after"][by]) for row in rows)
    cost = common if at is None else at
    if not 0 <= cost <= common:
        raise ValueError(f"--at {cost:,.0f}: a run ended after {common:,.0f}, and none began before 0")
    arms = {name: [row for row in rows if row["arm"] == name] for name in names}
    peers = {row["seed"]: accuracy_at(row, cost, "sampled", by=by) for row in arms.get(against or "", [])}
    records = [_arm(name, runs, cost, by, peers) for name, runs in arms.items()]
    return sorted(records, key=lambda record: -record["sampled"])


def accuracy_at(row: Mapping[str, Any], cost: float, kind: str, *, by: str = "tokens") -> float:
    """Returns the accuracy of `kind`, greedy or sampled, at a cost."""
    curve = row["curve"]
    return float(np.interp(cost, [point[by] for point in curve], [point[kind] for point in curve]))


def _arm(
    arm: str, rows: Sequence[Mapping[str, Any]], cost: float, by: str, peers: Mapping[int, float]
) -> dict[str, Any]:
    sampled = [accuracy_at(row, cost, "sampled", by=by) for row in rows]
    gains = [value - row["before"]["sampled"] for value, row in zip(sampled, rows, strict=True)]
    over = [
        value - peers[row["seed"]] for value, row in zip(sampled, rows, strict=True) if row["seed"] in peers
    ]
    return {
        "arm": arm,
        "seeds": len(rows),
        by: round(cost),
        "sampled": round(statistics.fmean(sampled), 4),
        "sampled_interval_95": _rounded(mean_interval(sampled)),
        "gain": round(statistics.fmean(gains), 4),
        "over": round(statistics.fmean(over), 4) if over else None,
        "over_95": _rounded(mean_interval(over)),
        "greedy": round(statistics.fmean(accuracy_at(row, cost, "greedy", by=by) for row in rows), 4),
        "processor_seconds": round(statistics.fmean(row["processor_seconds"] for row in rows), 1),
    }


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 4) for end in interval]


def main() -> None:
    """Prints one JSON line per arm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--by", choices=COSTS, default="tokens", help="what is held equal")
    parser.add_argument("--at", type=float, help="how much of it")
    parser.add_argument("--against", metavar="ARM", help="compare each arm with this one, seed by seed")
    options = parser.parse_args()
    with mistakes(parser):
        rows = [row for _, row in read_lines(options.grid)]
        records = summarise(rows, options.at, by=options.by, against=options.against)
    for record in records:
        emit(**record)


if __name__ == "__main__":
    main()
