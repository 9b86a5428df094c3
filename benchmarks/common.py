"""What every benchmark shares: facts about the machine, JSON lines, peers that take turns."""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

import torch

_PACKAGES = ("torch", "transformers", "trl")


def facts() -> dict[str, Any]:
    """Returns the date, cores, threads and versions that a figure belongs to."""
    versions: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": date.today().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def emit(**row: Any) -> None:
    """Prints one JSON line."""
    print(json.dumps(row), flush=True)


def alternate(arms: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each arm in `rounds` rounds of taking turns, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        for name, arm in arms.items():
            started = time.perf_counter()
            arm()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def median_ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """Returns how many times faster ours is: the median over rounds of peer / ours."""
    return statistics.median(theirs / our for theirs, our in zip(peer, ours, strict=True))
