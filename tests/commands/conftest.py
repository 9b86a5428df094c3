"""Commands as a user types them, in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.commands.typed import Answer, Command
from tests.tiny import save_tiny_model
from turnpoint import cli


@pytest.fixture
def turnpoint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["turnpoint", *map(str, arguments)])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        said = capsys.readouterr()
        return Answer(status=status, out=said.out, err=said.err)

    return run


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
