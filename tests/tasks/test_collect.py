"""Every row is accounted for: kept, a duplicate, or invalid with a reason."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.errors import DataError
from turnpoint.tasks.collect import collect, json_value
from turnpoint.tasks.dataset import Dataset
from turnpoint.tasks.formats import FORMATS
from turnpoint.tasks.rows import Row


def collected(
    columns: list[dict[str, Any]],
    *,
    format: str = "plain",
    limit: int | None = None,
    solution: str | None = None,
) -> Dataset:
    rows = [Row(index=index, where=f"row {index}", columns=row) for index, row in enumerate(columns)]
    read = FORMATS[format].read
    return collect(rows, read, name="name", source="source", format=format, limit=limit, solution=solution)


def qa(question: Any, answer: Any, **others: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, **others}


def test_duplicates_are_dropped_and_counted() -> None:
    dataset = collected([qa("a", "1"), qa("b", "1"), qa("a", " 1 "), qa("a", 1), qa("c", "2")])
    assert [task.question for task in dataset.tasks] == ["a", "b", "c"]
    assert (dataset.report.rows, dataset.report.kept, dataset.report.duplicates) == (5, 3, 2)


def test_dapo_repeats_every_problem_a_hundred_times() -> None:
    rows = [
        {"prompt": [{"role": "user", "content": str(n)}], "reward_model": {"ground_truth": str(n)}}
        for n in range(10)
    ]
    dataset = collected(rows * 100, format="dapo")
    assert (dataset.report.kept, dataset.report.duplicates) == (10, 990)


def test_of_contradicting_answers_the_first_is_kept() -> None:
    dataset = collected([qa("a", "1"), qa("a", "2"), qa("a", "1")])
    assert [task.answer for task in dataset.tasks] == ["1"]
    (conflict,) = dataset.report.invalid
    assert (conflict.reason, conflict.count) == ("another answer to the prompt of an earlier row", 1)
    assert conflict.first.startswith("row 1: ")


def test_prompts_are_the_same_only_in_all_turns_and_roles() -> None:
    def prompt(*turns: tuple[str, str]) -> dict[str, Any]:
        messages = [{"role": role, "content": content} for role, content in turns]
        return {"prompt": messages, "answer": "1"}

    alone, before = prompt(("user", "b")), prompt(("user", "a"), ("user", "b"))
    dataset = collected([alone, before, prompt(("system", "a"), ("user", "b")), alone])
    assert (dataset.report.kept, dataset.report.duplicates) == (3, 1)


def test_invalid_rows_are_counted_by_reason_with_the_first() -> None:
    dataset = collected([qa("a", ""), qa("b", "1"), qa("c", None), qa("d", ""), {"question": "e"}])
    assert [(rows.reason, rows.count, rows.first) for rows in dataset.report.invalid] == [
        ("answer is empty", 2, "row 0: {'answer': '', 'question': 'a'}"),
        ("answer is null", 1, "row 2: {'answer': None, 'question': 'c'}"),
        ("no column answer", 1, "row 4: {'question': 'e'}"),
    ]
    assert dataset.report.lines() == [
        "source: 5 rows read as plain, 1 kept",
        "left out: answer is empty (2 rows, first: row 0: {'answer': '', 'question': 'a'})",
        "left out: answer is null (1 row, first: row 2: {'answer': None, 'question': 'c'})",
        "left out: no column answer (1 row, first: row 4: {'question': 'e'})",
    ]


def test_nothing_usable_is_an_error_with_the_counts() -> None:
    with pytest.raises(DataError, match=r"^source: no rows$"):
        collected([])
    with pytest.raises(DataError) as caught:
        collected([qa("a\n" * 1000, None), qa("b", ""), qa("c", "")])
    message = str(caught.value)
    assert message.startswith("source: none of 3 rows can be used: answer is null (1 row, first: row 0: ")
    assert "answer is empty (2 rows, first: row 1: " in message
    assert "\n" not in message
    assert len(message) < 400


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from(["1", "2", "", None]))),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_rows_are_kept_duplicates_or_invalid(pairs: list[tuple[Any, Any]], limit: int | None) -> None:
    rows = [qa("sure", "1"), *(qa(*pair) for pair in pairs)]
    report = collected(rows, limit=limit).report
    assert report.rows == report.kept + report.duplicates + sum(bad.count for bad in report.invalid)
    assert report.kept <= (limit or len(rows))


def test_limit_counts_kept_tasks_and_stops_reading() -> None:
    rows = [qa("a", "1"), qa("a", "1"), qa("b", ""), qa("c", "1"), qa("d", "1")]
    report = collected(rows, limit=2).report
    assert (report.rows, report.kept, report.duplicates) == (4, 2, 1)


# --- several solutions of a problem -------------------------------------------------------------


def test_solutions_tell_rows_apart_and_answers_do_not() -> None:
    rows = [
        qa("a", "1", work="x"),
        qa("a", "1", work="y"),
        qa("a", "1.0", work="x"),
        qa("a", "2", work="z"),
        qa("b", "1", work="x"),
        qa("a", "1"),
    ]
    dataset = collected(rows, solution="work")
    assert [task.metadata.get("work") for task in dataset.tasks] == ["x", "y", "z", "x", None]
    assert dataset.report.lines() == [
        "source: 6 rows read as plain, 5 kept",
        "1 row dropped: the same prompt and solution again",
    ]
    assert (collected(rows).report.kept, collected(rows).report.duplicates) == (2, 2)  # as ever


def test_a_solution_in_the_answer_column_tells_rows_apart_too() -> None:
    plain = [qa("a", "1 is it"), qa("a", "it is 1"), qa("a", "it is 1")]
    assert [task.answer for task in collected(plain, solution="answer").tasks] == ["1 is it", "it is 1"]
    gsm8k = [qa("a", "2*2\n#### 4"), qa("a", "2+2\n#### 4"), qa("a", "2*2\n#### 4")]
    report = collected(gsm8k, format="gsm8k", solution="answer").report
    assert (report.kept, report.duplicates) == (2, 1)


def test_ids_differ_where_rows_of_one_problem_share_theirs() -> None:
    rows = [qa("a", 1, id="a", work="x"), qa("a", 1, id="a", work="y"), qa("b", 1, id="b", work="x")]
    dataset = collected(rows, solution="work")
    assert [task.id for task in dataset.tasks] == ["name/0", "name/1", "name/2"]


# --- ids and metadata ---------------------------------------------------------------------------


def test_ids_are_the_rows_own_when_all_have_one_and_all_differ() -> None:
    assert [task.id for task in collected([qa("a", 1, id="x"), qa("b", 1, id=7)]).tasks] == ["x", "7"]
    assert [task.id for task in collected([qa("a", 1, unique_id="t/1")]).tasks] == ["t/1"]


@pytest.mark.parametrize("own", ["x", None, "", 1.5])
def test_otherwise_ids_are_the_name_and_the_row(own: Any) -> None:
    rows = [qa("a", 1, id="x"), qa("", 1, id="y"), qa("b", 1, id=own)]
    assert [task.id for task in collected(rows).tasks] == ["name/0", "name/2"]


def test_all_other_columns_are_metadata() -> None:
    (task,) = collected([qa("a", "1", level=3, tags=["x"])]).tasks
    assert task.metadata == {"level": 3, "tags": ["x"]}


def test_a_column_that_says_more_than_the_answer_is_kept() -> None:
    solution = "2*2\n#### 4"
    (task,) = collected([qa("a", solution)], format="gsm8k").tasks
    assert task.metadata == {"answer": solution}
    dapo = {"prompt": "a", "reward_model": {"ground_truth": "4", "style": "rule"}}
    (task,) = collected([dapo], format="dapo").tasks
    assert task.metadata == {"reward_model": dapo["reward_model"]}


def test_json_value_cleans_what_json_cannot_say() -> None:
    day = datetime.date(2026, 1, 2)
    given: dict[Any, Any] = {
        1: (1, 2),
        "set": {3},
        "nan": [math.nan, np.float32("inf"), 0.5],
        "numpy": [np.int64(4), np.bool_(True), np.str_("s"), np.array([[1.5, 2.0]])],
        "day": day,
        "bytes": b"\xff",
        "flags": [True, None],
    }
    assert json_value(given) == {
        "1": [1, 2],
        "set": [3],
        "nan": [None, None, 0.5],
        "numpy": [4, True, "s", [[1.5, 2.0]]],
        "day": "2026-01-02",
        "bytes": "b'\\xff'",
        "flags": [True, None],
    }
    assert type(json_value(np.str_("s"))) is str


def test_a_column_nested_without_end_costs_its_own_row_only() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    dataset = collected([qa("a", "1"), qa("b", "2", extra=deep)])
    assert [task.question for task in dataset.tasks] == ["a"]
    assert dataset.report.invalid[0].reason == "a column is nested hundreds of levels deep"
