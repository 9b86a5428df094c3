"""Where rows come from: JSON lines, parquet files, Hugging Face datasets. One row at a time."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from turnpoint.errors import DataError

Columns: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a source, as it is."""

    index: int  # counts the rows of the source from 0
    where: str  # for people: "line 17"
    columns: Columns


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Yields the objects of a JSON-lines file, gzipped when its name ends in .gz.

    A byte-order mark, CRLF and blank lines are fine.

    Raises DataError with the line number for bytes that are not UTF-8, broken JSON, or anything but an
    object.
    """
    index = 0
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path.expanduser(), "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not text.strip():
                    continue
                yield Row(
                    index=index, where=f"line {number}", columns=_object(text, f"{path}, line {number}")
                )
                index += 1
    except OSError as error:
        raise DataError(f"tasks {path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"tasks {path}: broken gzip: {error}") from error


def _object(line: bytes, where: str) -> Columns:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start + 1} of the line") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: broken JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise DataError(f"{where}: unusable JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected one JSON object per line, got {type(value).__name__}")
    return cast(Columns, value)


def parquet_rows(path: Path) -> Iterator[Row]:
    """Yields the rows of a parquet file; raises DataError when it cannot be read."""
    from pyarrow import parquet

    index = 0
    try:
        with cast(Any, parquet).ParquetFile(path.expanduser()) as file:
            for batch in file.iter_batches(batch_size=1024):
                for columns in batch.to_pylist():
                    yield Row(index=index, where=f"row {index}", columns=columns)
                    index += 1
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise DataError(f"tasks {path}: {_one_line(error)}") from error


def hub_rows(path: str, *, subset: str | None, split: str) -> Iterator[Row]:
    """Yields the rows of a Hugging Face dataset, by hub name or from a folder that `save_to_disk` wrote.

    Raises DataError that says what was tried when it is not there, has no such subset or split, or the
    hub cannot be reached.
    """
    for index, columns in enumerate(_open_dataset(path, subset=subset, split=split)):
        yield Row(index=index, where=f"row {index}", columns=columns)


def _open_dataset(path: str, *, subset: str | None, split: str) -> Any:
    import datasets  # seconds to import, and only needed here

    folder = Path(path).expanduser()
    saved = (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()
    what = f"dataset {path!r}, subset {subset!r}, split {split!r}"
    try:
        if saved:
            return _saved_split(cast(Any, datasets).load_from_disk(str(folder)), subset, split, what)
        return cast(Any, datasets).load_dataset(str(folder) if folder.is_dir() else path, subset, split=split)
    except DataError:
        raise
    except Exception as error:  # of many kinds: each of the readers for each kind of file has its own
        tried = "the folder" if folder.is_dir() else "a folder of this name, then the hub"
        raise DataError(f"{what}: tried {tried}: {_one_line(error)}") from error


def _saved_split(saved: Any, subset: str | None, split: str, what: str) -> Any:
    if subset is not None:
        raise DataError(f"{what}: a folder that save_to_disk wrote has no subsets; drop tasks.subset")
    several = isinstance(saved, dict)
    parts = cast("dict[str, Any]", saved if several else {str(saved.split or "train"): saved})
    if split not in parts:
        raise DataError(f"{what}: the folder holds {', '.join(sorted(parts))}; set tasks.split")
    return parts[split]


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
