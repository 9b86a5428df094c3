"""What a grid found: mean and 95 % interval over seeds of each arm, at equal generated tokens.

    python -m benchmarks.organism.summary runs/grid.jsonl [--tokens 1000000]

Accuracy at a number of tokens is interpolated between the two evaluations around it. Without --tokens it is
the largest number that every run has reached. Intervals are Student's t over training seeds: they say how
far seeds differ, on one set of held-out problems and one cold start.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import emit
from benchmarks.organism.grid import read_rows
from turnpoint.rollout.intervals import mean_interval


def summarise(rows: Sequence[Mapping[str, Any]], tokens: float | None = None) -> list[dict[str, Any]]:
    """Returns one record per arm, best first, at `tokens` generated tokens.

    `gain` is the accuracy at temperature 1 minus that before training. Raises ValueError for more tokens than
    a run has generated, and without rows.
    """
    if not rows:
        raise ValueError("the grid's file holds no line yet")
    common = min(float(row["generated_tokens"]) for row in rows)
    at = common if tokens is None else tokens
    if at > common:
        raise ValueError(f"--tokens {at:,.0f}: a run ended after {common:,.0f}")
    records = [_arm(arm, [row for row in rows if row["arm"] == arm], at) for arm in _names(rows)]
    return sorted(records, key=lambda record: -record["sampled"])


def accuracy_at(row: Mapping[str, Any], tokens: float, kind: str) -> float:
    """Returns the accuracy of `kind`, greedy or sampled, after `tokens` generated tokens."""
    curve = row["curve"]
    return float(np.interp(tokens, [point["tokens"] for point in curve], [point[kind] for point in curve]))


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [*dict.fromkeys(row["arm"] for row in rows)]


def _arm(arm: str, rows: Sequence[Mapping[str, Any]], tokens: float) -> dict[str, Any]:
    sampled = [accuracy_at(row, tokens, "sampled") for row in rows]
    gains = [value - row["before"]["sampled"] for value, row in zip(sampled, rows, strict=True)]
    return {
        "arm": arm,
        "seeds": len(rows),
        "tokens": round(tokens),
        "sampled": round(statistics.fmean(sampled), 4),
        "sampled_interval_95": _rounded(mean_interval(sampled)),
        "gain": round(statistics.fmean(gains), 4),
        "greedy": round(statistics.fmean(accuracy_at(row, tokens, "greedy") for row in rows), 4),
        "processor_seconds": round(statistics.fmean(row["processor_seconds"] for row in rows), 1),
    }


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 4) for end in interval]


def main() -> None:
    """Prints one JSON line per arm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--tokens", type=float)
    options = parser.parse_args()
    for record in summarise(read_rows(options.grid), options.tokens):
        emit(**record)


if __name__ == "__main__":
    main()
