"""Tasks back to a file that `kind: jsonl` reads, as rows of the plain format."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from turnpoint.errors import DataError
from turnpoint.types import Json, Task

_OWN = ("question", "prompt", "answer")  # columns that say what the task is


def task_row(task: Task, added: Mapping[str, Json]) -> dict[str, Json]:
    """Returns `task` as a row of the plain format, its other columns behind, then those of `added`.

    A column of its source that would stand for the task (gsm8k's `answer` with the whole solution) is called
    `source_answer` and so on; one that `added` names is replaced.

    >>> task = Task(id="a/0", messages=(Message(role="user", content="1 + 1"),), answer="2")
    >>> task_row(task, {"pass_rate": 0.5})
    {'question': '1 + 1', 'answer': '2', 'pass_rate': 0.5}
    """
    alone = len(task.messages) == 1
    asked: dict[str, Json] = (
        {"question": task.question}
        if alone
        else {"prompt": [{"role": it.role, "content": it.content} for it in task.messages]}
    )
    others = {f"source_{name}" if name in _OWN else name: value for name, value in task.metadata.items()}
    return {**asked, "answer": task.answer, **others, **added}


def write_rows(path: Path, rows: Iterable[Mapping[str, Json]]) -> None:
    """Writes `rows` to `path` as JSON lines, whole or not at all; what was there is replaced.

    Raises DataError when the disk refuses.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
            new = Path(scratch) / path.name  # beside `path`: a rename works only within one file system
            with new.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
