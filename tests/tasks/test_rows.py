"""Rows arrive whole and in order, or an error says where and why."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from turnpoint.errors import DataError
from turnpoint.tasks.rows import hub_rows, jsonl_rows, parquet_rows

ROWS = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(5)]


def write_parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    cast(Any, parquet).write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path


def columns(rows: Any) -> list[dict[str, Any]]:
    return [row.columns for row in rows]


# --- jsonl --------------------------------------------------------------------------------------


def test_jsonl_takes_a_mark_blank_lines_crlf_and_no_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n   \n{"a": "\xe2\x80\xa8"}\n{"a": 3}')
    rows = list(jsonl_rows(path))
    assert [row.columns for row in rows] == [{"a": 1}, {"a": "\u2028"}, {"a": 3}]
    assert [(row.index, row.where) for row in rows] == [(0, "line 1"), (1, "line 4"), (2, "line 5")]


def test_jsonl_takes_a_line_of_a_megabyte(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "' + "x" * 2**20 + '"}\n{"a": ""}\n')
    assert [len(row["a"]) for row in columns(jsonl_rows(path))] == [2**20, 0]


def test_jsonl_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\nbroken\n')
    rows = jsonl_rows(path)
    assert next(rows).columns == {"a": 1}
    with pytest.raises(DataError, match="line 2"):
        next(rows)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": }', "line 2: broken JSON at column 7: Expecting value"),
        (b'{"a": 1} {"a": 2}', "line 2: broken JSON at column 10: Extra data"),
        (b"[1, 2]", "line 2: expected one JSON object per line, got list"),
        (b'{"a": "\xff"}', "line 2: not UTF-8 at byte 8 of the line"),
        (b"[" * 200_000, "line 2: unusable JSON: maximum recursion depth"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 2: unusable JSON: Exceeds the limit"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(DataError) as caught:
        list(jsonl_rows(path))
    assert f"{path}, {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_is_a_folder_is_one_line(tmp_path: Path) -> None:
    for read in (jsonl_rows, parquet_rows):
        with pytest.raises(DataError, match=r"^tasks .*/none: .*[Nn]o such file"):
            list(read(tmp_path / "none"))
        with pytest.raises(DataError, match=r"^tasks .* is a directory|Is a directory"):
            list(read(tmp_path))


# --- parquet ------------------------------------------------------------------------------------


def test_parquet_rows_keep_order_and_nested_columns(tmp_path: Path) -> None:
    given = [{"n": n, "prompt": [{"role": "user", "content": str(n)}]} for n in range(3000)]
    rows = list(parquet_rows(write_parquet(tmp_path / "rows.parquet", given, row_group_size=700)))
    assert [row.columns for row in rows] == given
    assert [row.index for row in rows] == list(range(3000))
    assert rows[-1].where == "row 2999"


def test_parquet_keeps_types_that_json_lacks(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    assert columns(parquet_rows(write_parquet(tmp_path / "rows.parquet", [{"day": day}]))) == [{"day": day}]


def test_a_broken_parquet_file_is_one_line(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"^tasks .*rows\.parquet: Arrow") as caught:
        list(parquet_rows(path))
    assert "\n" not in str(caught.value)


# --- Hugging Face datasets ----------------------------------------------------------------------


def saved(folder: Path, **splits: list[dict[str, Any]]) -> str:
    parts = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    cast(Any, datasets).DatasetDict(parts).save_to_disk(folder)
    return str(folder)


def test_a_saved_dataset_is_read_by_split(tmp_path: Path) -> None:
    folder = saved(tmp_path / "data", train=ROWS[:3], test=ROWS[3:])
    assert columns(hub_rows(folder, subset=None, split="train")) == ROWS[:3]
    assert columns(hub_rows(folder, subset=None, split="test")) == ROWS[3:]


def test_a_saved_dataset_without_splits_is_train(tmp_path: Path) -> None:
    cast(Any, datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "data")
    assert columns(hub_rows(str(tmp_path / "data"), subset=None, split="train")) == ROWS
    with pytest.raises(DataError, match=r"the folder holds train; set tasks\.split"):
        list(hub_rows(str(tmp_path / "data"), subset=None, split="test"))


def test_a_missing_split_and_a_needless_subset_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "data", train=ROWS, test=ROWS)
    with pytest.raises(DataError, match=r"split 'dev': the folder holds test, train; set tasks\.split"):
        list(hub_rows(folder, subset=None, split="dev"))
    with pytest.raises(DataError, match=r"has no subsets; drop tasks\.subset"):
        list(hub_rows(folder, subset="main", split="train"))


def test_a_folder_of_files_is_read_as_the_hub_lays_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", ROWS)
    assert columns(hub_rows(str(tmp_path / "data"), subset=None, split="test")) == ROWS
    with pytest.raises(DataError, match=r"tried the folder: ValueError: .*split"):
        list(hub_rows(str(tmp_path / "data"), subset=None, split="train"))


def test_a_name_that_cannot_be_reached_says_what_was_tried() -> None:
    with pytest.raises(DataError) as caught:
        list(hub_rows("nobody/nothing", subset="main", split="train"))
    message = str(caught.value)
    assert message.startswith("dataset 'nobody/nothing', subset 'main', split 'train': tried a folder")
    assert "the hub" in message
    assert "\n" not in message


def test_a_folder_of_junk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.json.gz").write_bytes(b"\x1f\x8b\x08" + bytes(range(100)))
    with pytest.raises(DataError, match="tried the folder") as caught:
        list(hub_rows(str(tmp_path / "data"), subset=None, split="train"))
    assert "\n" not in str(caught.value)
