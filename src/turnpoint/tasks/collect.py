"""Rows to a dataset: what can be used is kept once, the rest is counted with its reason."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from turnpoint.errors import DataError
from turnpoint.tasks.dataset import Dataset, InvalidRows, ReadReport
from turnpoint.tasks.row_format import InvalidRow, Problem
from turnpoint.tasks.rows import Columns, Row
from turnpoint.types import Json, Message, Task

_CONFLICT = "another answer to the prompt of an earlier row"
_OWN_IDS = ("id", "unique_id")


def collect(
    rows: Iterable[Row],
    read: Callable[[Columns], Problem],
    *,
    name: str,
    source: str,
    format: str,
    limit: int | None,
    solution: str | None = None,
) -> Dataset:
    """Returns the tasks that `read` finds in `rows`, at most `limit`.

    A row that says the same as an earlier one, messages and answer, is dropped and counted. Of rows with
    the same messages and different answers the first is kept, the others are invalid: at most one of
    the answers can be right, and dropping all would punish two spellings of one answer.

    With `solution`, the column that is imitated, several rows may solve one problem: a row is dropped
    only when messages and solution are those of an earlier one, and gold answers are not compared. Raises
    DataError with the counts when nothing is kept.
    """
    counts = _Counts()
    answers: dict[tuple[tuple[Message, ...], str | None], str] = {}
    kept: list[_Kept] = []
    num_rows = duplicates = 0
    for row in rows:
        num_rows += 1
        try:
            problem = read(row.columns)
            metadata = _metadata(row.columns, problem)
        except InvalidRow as error:
            counts.add(str(error), row)
            continue
        key = (problem.messages, _solution(problem, metadata, solution))
        if key not in answers:
            answers[key] = problem.answer
            kept.append(_Kept(row=row, problem=problem, metadata=metadata))
        elif solution is not None or answers[key] == problem.answer:
            duplicates += 1
        else:
            counts.add(_CONFLICT, row)
        if len(kept) == limit:
            break
    if not num_rows:
        raise DataError(f"{source}: no rows")
    if not kept:
        raise DataError(
            f"{source}: none of {num_rows:,} rows can be used: {'; '.join(map(str, counts.rows()))}"
        )
    report = ReadReport(
        source=source,
        format=format,
        rows=num_rows,
        kept=len(kept),
        duplicates=duplicates,
        told_apart_by="prompt and answer" if solution is None else "prompt and solution",
        invalid=counts.rows(),
    )
    return Dataset(name=name, tasks=_tasks(kept, name), report=report)


class _Counts:
    """Reasons, how often each was given, and where first."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, row: Row) -> None:
        count, first = self._rows.get(reason) or (0, f"{row.where}: {reprlib.repr(dict(row.columns))}")
        self._rows[reason] = (count + 1, first)

    def rows(self) -> tuple[InvalidRows, ...]:
        return tuple(
            InvalidRows(reason=reason, count=count, first=first)
            for reason, (count, first) in self._rows.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    row: Row
    problem: Problem
    metadata: Mapping[str, Json]


def _tasks(kept: list[_Kept], name: str) -> tuple[Task, ...]:
    """Ids are the rows' own when all have one and all differ, else NAME/INDEX of the row."""
    own = [_own_id(each.row.columns) for each in kept]
    use_own = None not in own and len(set(own)) == len(own)
    return tuple(
        Task(
            id=str(own_id) if use_own else f"{name}/{each.row.index}",
            messages=each.problem.messages,
            answer=each.problem.answer,
            metadata=each.metadata,
        )
        for own_id, each in zip(own, kept, strict=True)
    )


def _solution(problem: Problem, metadata: Mapping[str, Json], column: str | None) -> str | None:
    """Returns what `column` holds, usable or not, by the rule of `solutions.read_solutions`."""
    return None if column is None else json.dumps(metadata.get(column, problem.answer))


def _metadata(columns: Columns, problem: Problem) -> dict[str, Json]:
    left = {str(column): value for column, value in columns.items() if column not in problem.used}
    try:
        return {column: json_value(value) for column, value in left.items()} | dict(problem.extra)
    except RecursionError as error:
        raise InvalidRow("a column is nested hundreds of levels deep") from error


def _own_id(columns: Columns) -> str | None:
    for column in _OWN_IDS:
        value = columns.get(column)
        if isinstance(value, str | int) and str(value).strip():
            return str(value)
    return None


def json_value(value: Any) -> Json:
    """Returns `value` as JSON can say it.

    Tuples, sets and arrays become lists, keys and whatever else (dates, bytes) their text, numbers that
    are not finite null.
    """
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in cast(Iterable[Any], value)]
    if isinstance(value, np.generic | np.ndarray):
        return json_value(cast(Any, value).tolist())
    return str(value)
