"""What is cut off: whole lines of later steps and a torn end, all of it or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from turnpoint.errors import RunFolderError
from turnpoint.reports.cut import cut_lines, step_of_row


def write(path: Path, *steps: int, torn: bytes = b"") -> Path:
    path.write_bytes(
        b"".join(json.dumps({"step": step, "x": "\n"}).encode() + b"\n" for step in steps) + torn
    )
    return path


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("torn", [b"", b"{", b'{"step": 9'])
@pytest.mark.parametrize(
    ("after", "left"), [(-1, []), (0, [0]), (1, [0, 1, 1]), (2, [0, 1, 1]), (3, [0, 1, 1, 3])]
)
def test_later_lines_and_a_torn_end_go(tmp_path: Path, after: int, left: list[int], torn: bytes) -> None:
    path = write(tmp_path / "x.jsonl", 0, 1, 1, 3, torn=torn)
    cut_lines(path, after=after, step_of=step_of_row)
    assert steps_in(path) == left


def test_a_file_without_later_lines_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.jsonl", 1, 2)

    def refuse(*_: object) -> None:
        raise OSError("touched")

    monkeypatch.setattr(os, "truncate", refuse)
    cut_lines(path, after=2, step_of=step_of_row)
    cut_lines(tmp_path / "absent", after=2, step_of=step_of_row)
    with pytest.raises(RunFolderError, match=r"x\.jsonl: touched"):
        cut_lines(path, after=1, step_of=step_of_row)


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"step": null}', "3"])
def test_a_line_without_a_step_is_an_error_and_nothing_is_cut(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    before = path.read_bytes()
    with pytest.raises(RunFolderError, match=r"x\.jsonl, line 2: ") as caught:
        cut_lines(path, after=1, step_of=step_of_row)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
