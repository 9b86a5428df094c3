"""Lines that came after a checkpoint are cut off, so that a run which goes on from there writes them anew."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from turnpoint.errors import RunFolderError


def step_of_row(line: bytes) -> int:
    """Returns the step of a line of any log but rollouts.jsonl; raises ValueError without one."""
    row: Any = json.loads(line)
    if not isinstance(row, dict) or not isinstance(step := cast(dict[str, Any], row).get("step"), int):
        raise ValueError("it has no step")
    return step


def cut_lines(path: Path, *, after: int, step_of: Callable[[bytes], int]) -> None:
    """Cuts off the lines of steps later than `after`, and what is left of a torn last line.

    Lines are in the order of their steps, so they are the end of the file, and one call of the operating
    system takes them away: whoever is killed here has cut all of it or nothing. Raises RunFolderError when
    a line has no step or the disk refuses.
    """
    if not path.exists():
        return
    try:
        kept = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n") or _step(path, number, line, step_of) > after:
                    break
                kept += len(line)
        if kept < path.stat().st_size:
            os.truncate(path, kept)
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from error


def _step(path: Path, number: int, line: bytes, step_of: Callable[[bytes], int]) -> int:
    try:
        return step_of(line)
    except ValueError as error:
        raise RunFolderError(f"{path}, line {number}: {error}") from error
