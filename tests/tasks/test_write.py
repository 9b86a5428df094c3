"""A task that is written and read again is the same task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnpoint.config import JsonlTasks
from turnpoint.errors import DataError
from turnpoint.tasks import Dataset, load_tasks
from turnpoint.tasks.write import task_row, write_rows

ROWS: dict[str, dict[str, Any]] = {
    "plain": {"question": "1 + 1 =\n", "answer": 2, "level": 3, "id": "x7"},
    "messages": {
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1 ="}],
        "answer": "2",
    },
    "gsm8k": {"question": "One and one?", "answer": "One and one are two.\n#### 2"},
    "math": {"problem": "One and one?", "solution": r"It is \boxed{2}.", "level": "Level 1"},
    "deepmath": {"question": "One and one?", "final_answer": "2", "difficulty": 0.5},
    "dapo": {
        "prompt": [{"role": "user", "content": "One and one?"}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
    },
}


def read(path: Path, form: str = "auto") -> Dataset:
    return load_tasks(JsonlTasks.model_validate({"kind": "jsonl", "path": path, "format": form}))


@pytest.mark.parametrize("form", ROWS)
def test_there_and_back(tmp_path: Path, form: str) -> None:
    source, path = tmp_path / "source.jsonl", tmp_path / "written.jsonl"
    source.write_text(json.dumps(ROWS[form]) + "\n")
    (task,) = read(source).tasks
    write_rows(path, [task_row(task, {"pass_rate": 0.25})])
    (again,) = read(path, "plain").tasks
    assert (again.messages, again.answer) == (task.messages, task.answer)
    assert again.metadata["pass_rate"] == 0.25
    for name, value in task.metadata.items():
        assert again.metadata["source_answer" if name == "answer" else name] == value


def test_a_rate_of_an_earlier_filter_is_replaced(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text('{"question": "1", "answer": "1", "pass_rate": 0.5}\n')
    (task,) = read(source).tasks
    assert task_row(task, {"pass_rate": 0.25}) == {"question": "1", "answer": "1", "pass_rate": 0.25}


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("before\n")

    def rows() -> Any:
        yield {"a": 1}
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="No space left"):
        write_rows(path, rows())
    assert path.read_text() == "before\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]
    write_rows(path, [{"a": 1}])
    assert path.read_text() == '{"a": 1}\n'


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        write_rows(tmp_path / "no" / "rows.jsonl", [])
