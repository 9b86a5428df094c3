"""What every benchmark shares: the model, facts about the machine, JSON lines."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

import torch

from turnpoint.errors import TurnpointError
from turnpoint.models.locate import model_folder
from turnpoint.reports.environment import versions_of
from turnpoint.speed.machine import processor_name, usable_cores

_PACKAGES = ("torch", "transformers", "trl")


def folder_of(model: str) -> str:
    """Returns the local folder of a model by path or name; fetches and converts the embedded one once."""
    return str(model_folder(model))


def facts() -> dict[str, Any]:
    """Returns the date, cores, threads and versions that a figure belongs to."""
    return {
        "date": date.today().isoformat(),
        "processor": processor_name(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "versions": versions_of(_PACKAGES),
    }


def emit(**row: Any) -> None:
    """Prints one JSON line."""
    print(json.dumps(row), flush=True)


@contextmanager
def mistakes(parser: argparse.ArgumentParser) -> Generator[None]:
    """Tells what is wrong with what was given as one line, status 2."""
    try:
        yield
    except (TurnpointError, ValueError) as error:
        parser.error(str(error))


def median_ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """Returns how many times faster ours is: the median over rounds of peer / ours."""
    return statistics.median(theirs / our for theirs, our in zip(peer, ours, strict=True))
