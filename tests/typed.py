"""Commands as a user types them: what they leave behind, and processes that are ended politely."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class Answer:
    """Exit status and what was written."""

    status: int
    out: str
    err: str


Command: TypeAlias = Callable[..., Answer]


def is_one_line(answer: Answer, words: str) -> bool:
    """Whether a mistake was answered as mistakes are: status 2, one line that holds `words`."""
    return answer.status == 2 and len(answer.err.splitlines()) == 1 and words in answer.err


def start(*arguments: str | Path, ignoring: Collection[signal.Signals] = ()) -> subprocess.Popen[str]:
    """Starts the command in a process of its own, which ignores of SIGINT and SIGHUP only what is said.

    Signals that are ignored stay so in a new process: under nohup, and in background jobs of scripts.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with _dispositions(ignoring):
        return subprocess.Popen(
            [sys.executable, "-m", "turnpoint", *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def end(process: subprocess.Popen[str], how: signal.Signals, *, when: Callable[[], bool]) -> str:
    """Sends `how` as soon as `when` holds; returns what was said, after an end as after Ctrl-C."""
    deadline = time.monotonic() + 120
    while not when():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(how)
    said, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.endswith("turnpoint: interrupted\n")
    assert "Traceback" not in err
    return said


def holds_lines(path: Path, count: int) -> bool:
    """Whether `path` holds at least `count` whole lines by now."""
    return path.exists() and path.read_bytes().count(b"\n") >= count


@contextmanager
def _dispositions(ignored: Collection[signal.Signals]) -> Generator[None]:
    before = {
        which: signal.signal(which, signal.SIG_IGN if which in ignored else signal.SIG_DFL)
        for which in (signal.SIGINT, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
