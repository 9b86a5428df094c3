"""Which text of a row is learnt, and what is said about rows that have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnpoint.config import JsonlTasks
from turnpoint.errors import DataError
from turnpoint.tasks import Dataset, load_tasks
from turnpoint.tasks.solutions import SolvedTask, count_problems, read_solutions, split_problems
from turnpoint.types import Message, Task


def dataset(path: Path, rows: list[dict[str, Any]]) -> Dataset:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_tasks(JsonlTasks(kind="jsonl", path=file))


def row(index: int, **columns: Any) -> dict[str, Any]:
    return {"question": f"{index} + 1 =", "answer": str(index + 1), **columns}


def test_the_named_column_as_it_is(tmp_path: Path) -> None:
    rows = [row(0, work=" one step\n"), row(1, work="two\nsteps")]
    solved, left_out = read_solutions(dataset(tmp_path, rows), "work")
    assert [each.text for each in solved] == [" one step\n", "two\nsteps"]
    assert [each.task.answer for each in solved] == ["1", "2"]
    assert not left_out


def test_answer_is_the_gold_answer(tmp_path: Path) -> None:
    solved, _ = read_solutions(dataset(tmp_path, [row(0), row(1)]), "answer")
    assert [each.text for each in solved] == ["1", "2"]


def test_answer_of_gsm8k_is_the_whole_solution(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": "One and one.\n#### 2"}]
    solved, _ = read_solutions(dataset(tmp_path, rows), "answer")
    assert [(each.text, each.task.answer) for each in solved] == [("One and one.\n#### 2", "2")]


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    """H7."""
    with pytest.raises(DataError, match=r"solution = 'wrok': rows has no such column; it has answer, work"):
        read_solutions(dataset(tmp_path, [row(0, work="x"), row(1, work="y")]), "wrok")


def solved_task(question: str, text: str) -> SolvedTask:
    task = Task(id=text, messages=(Message(role="user", content=question),), answer="1")
    return SolvedTask(task=task, text=text)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_the_last_problems_are_held_out_with_all_their_solutions(count: int) -> None:
    solved = [solved_task(question, str(index)) for index, question in enumerate("abacbaa")]
    rest, held_out = split_problems(solved, count)
    kept = "abc"[: max(0, 3 - count)]
    assert [each.text for each in rest] == [str(i) for i, q in enumerate("abacbaa") if q in kept]
    assert [each.text for each in held_out] == [str(i) for i, q in enumerate("abacbaa") if q not in kept]
    assert count_problems(rest) == len(kept)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "work is empty"),
        (" \n", "work is empty"),
        (None, "work is null, not text"),
        (7, "work is a int, not text"),
        (["a"], "work is a list, not text"),
        ("\ud800", "work holds half a surrogate pair"),
    ],
)
def test_rows_without_usable_text_are_counted(tmp_path: Path, value: Any, reason: str) -> None:
    rows = [row(0, work="x"), row(1, work=value), row(2)]
    solved, left_out = read_solutions(dataset(tmp_path, rows), "work")
    assert [each.text for each in solved] == ["x"]
    assert left_out == {reason: 1, "no column work": 1}
