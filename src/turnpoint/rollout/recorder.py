"""Rollouts on disk: one JSON line per group, complete and readable with the usual tools.

A line holds the task, then each member's reward, finish reason and text, then the token tree:

    jq -r '.members[] | [.reward, .finish, .text] | @json' rollouts.jsonl

A line is appended as a whole, so that a crash can tear only the last one: readers skip it and say so, and
the next writer removes it. Any other line that is no group is an error; `group_json` has the fields.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from turnpoint._lines import read_records
from turnpoint.errors import RunFolderError
from turnpoint.rollout.group_json import decode, encode
from turnpoint.types import Group

_TAIL = 1 << 16  # bytes looked at together when the end of a file is searched for a line's end
_START = re.compile(rb'\{"format":\d+,"id":"(\d+)/')


class RolloutWriter:
    """Appends groups to a file, each handed to the operating system before `write` returns.

    One writer per file. It removes, with a warning, what a crash left of a torn last line. Raises
    RunFolderError when the file cannot be opened or written; what was written before stays whole. Use it
    as a context manager.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            self._file = self._path.open("a+b", buffering=0)
            _remove_torn_end(self._file, self._path)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, group: Group) -> None:
        """Appends one group."""
        line = memoryview(encode(group))
        start = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):  # readers tolerate a torn end; the first error is the news
                self._file.truncate(start)
            raise self._failure(error) from error

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        self._file.close()

    def __enter__(self) -> RolloutWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _failure(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self._path}: cannot write rollouts: {error.strerror or error}")


def read_groups(path: str | Path) -> Iterator[Group]:
    """Yields the recorded groups in order, equal to those written.

    Warns about a torn last line and skips it. Raises RunFolderError when the file cannot be read or a
    line is no recorded group, with the line's number, the field, its value and what is wrong with it.
    """
    try:
        for _, group in read_records(Path(path), decode, what="recorded group", torn=_warn):
            yield group
    except OSError as error:
        raise RunFolderError(f"{path}: cannot read rollouts: {error.strerror or error}") from error


def _warn(torn: str) -> None:
    warnings.warn(torn, stacklevel=4)


def step_of_group(line: bytes) -> int:
    """Returns the step that a recorded line belongs to, from its group's id "step/index".

    Only the start of the line is looked at. Raises ValueError when it is no recorded group.
    """
    start = _START.match(line)
    if start is None:
        raise ValueError(f"no recorded group: it begins with {line[:40]!r}")
    return int(start[1])


def _remove_torn_end(file: FileIO, path: Path) -> None:
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        warnings.warn(f"{path}: the last line was torn; removed {size - end} bytes", stacklevel=3)
        file.truncate(end)
