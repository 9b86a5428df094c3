"""From a recipe's section to a dataset: names, formats, limits, and errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.test_rows import ROWS, saved, write_parquet
from turnpoint.config import HubTasks, JsonlTasks, ParquetTasks
from turnpoint.errors import DataError
from turnpoint.tasks import load_tasks


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_readers_find_the_same_tasks(tmp_path: Path) -> None:
    jsonl = write_jsonl(tmp_path / "sums.jsonl", ROWS)
    parquet = write_parquet(tmp_path / "sums.parquet", ROWS)
    folder = saved(tmp_path / "sums", train=ROWS)
    read = [
        load_tasks(JsonlTasks(kind="jsonl", path=jsonl)),
        load_tasks(ParquetTasks(kind="parquet", path=parquet)),
        load_tasks(HubTasks(kind="hub", path=folder)),
    ]
    assert [dataset.name for dataset in read] == ["sums", "sums", "sums/train"]
    assert [dataset.tasks[4].id for dataset in read] == ["sums/4", "sums/4", "sums/train/4"]
    said = [[(task.messages, task.answer, task.metadata) for task in dataset.tasks] for dataset in read]
    assert said[0] == said[1] == said[2]
    assert read[0].fingerprint == read[1].fingerprint  # the third has other ids
    assert [task.answer for task in read[0].tasks] == ["1", "2", "3", "4", "5"]
    assert read[0].report.lines() == [f"{jsonl}: 5 rows read as plain, 5 kept"]


def test_a_given_format_is_used_and_auto_says_which(tmp_path: Path) -> None:
    row = {"question": "2 * 2", "answer": "2*2 = 4\n#### 4"}
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    auto = load_tasks(JsonlTasks(kind="jsonl", path=path))
    plain = load_tasks(JsonlTasks(kind="jsonl", path=path, format="plain"))
    assert (auto.report.format, auto.tasks[0].answer) == ("gsm8k", "4")
    assert (plain.report.format, plain.tasks[0].answer) == ("plain", row["answer"])


def test_rows_looked_at_to_recognise_the_format_are_not_lost(tmp_path: Path) -> None:
    rows = [{"question": str(n), "answer": None if n < 99 else "1"} for n in range(250)]
    report = load_tasks(JsonlTasks(kind="jsonl", path=write_jsonl(tmp_path / "rows.jsonl", rows))).report
    assert (report.rows, report.kept) == (250, 151)
    assert report.invalid[0].count == 99


def test_limit_is_the_number_of_tasks(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    assert len(load_tasks(JsonlTasks(kind="jsonl", path=path, limit=3)).tasks) == 3
    assert len(load_tasks(JsonlTasks(kind="jsonl", path=path, limit=300)).tasks) == 5


@pytest.mark.parametrize("format", ["auto", "gsm8k"])
def test_an_empty_file_says_so(tmp_path: Path, format: Any) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [])
    with pytest.raises(DataError, match=r"rows\.jsonl: no rows"):
        load_tasks(JsonlTasks(kind="jsonl", path=path, format=format))


def test_a_wrong_format_says_what_is_missing_and_what_is_there(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(
        DataError, match=r"none of 5 rows can be used: no column prompt .*'question': '0 \+ 1'"
    ):
        load_tasks(JsonlTasks(kind="jsonl", path=path, format="dapo"))
