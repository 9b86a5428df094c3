"""One writer per run folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnpoint.errors import RunFolderError
from turnpoint.reports.run_lock import locked

HOLD = """
import sys, pathlib
from turnpoint.reports.run_lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_is_refused_until_the_first_has_left(tmp_path: Path) -> None:
    with locked(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(RunFolderError, match=f"in use by another turnpoint, process {os.getpid()};"),
                locked(tmp_path),
            ):
                pass
    with locked(tmp_path):
        pass


def test_the_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"process {holder.pid};"), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFolderError, match="gone cannot be locked: No such file"),
        locked(tmp_path / "gone"),
    ):
        pass
