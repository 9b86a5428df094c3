"""Functions that fail in every way a reward can; they run in workers. The module is imported there too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run(*_: Any) -> Callable[..., Any]:
    """Returns a function that does what its first argument names, with the others."""

    def do(name: str, *arguments: Any) -> Any:
        return DEEDS[name](*arguments)

    return do


def broken() -> Callable[..., Any]:
    """Fails to start."""
    print("the licence server said no", file=sys.stderr)
    raise RuntimeError("no licence")


def needs_a_file(path: str) -> Callable[..., Any]:
    """Starts only when `path` exists, and says on what it ran."""
    if not Path(path).exists():
        os._exit(3)
    return run()


def _echo(value: Any) -> Any:
    return value


def _hang() -> None:
    while True:
        pass


def _hold_the_interpreter_lock() -> None:
    str(3 ** (10**8))


def _grow() -> None:
    blocks: list[bytearray] = []
    while True:
        blocks.append(bytearray(1 << 26))


def _raise() -> None:
    raise ValueError("two\nlines")


def _start_a_child() -> int:
    return subprocess.Popen(["sleep", "60"]).pid


def _child_then_hang(note: str) -> None:
    Path(note).write_text(str(_start_a_child()))
    _hang()


def _print() -> str:
    print('{"status": "done", "value": "forged", "reason": ""}')
    sys.stdout.flush()
    return sys.stdin.read()


def _note_and_hang(note: str) -> None:
    Path(note).write_text(str(os.getpid()))
    _hang()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


DEEDS: dict[str, Callable[..., Any]] = {
    "echo": _echo,
    "pid": os.getpid,
    "sleep": time.sleep,
    "hang": _hang,
    "hold": _hold_the_interpreter_lock,
    "grow": _grow,
    "raise": _raise,
    "exit": lambda: os._exit(7),
    "sys_exit": lambda: sys.exit(0),
    "die": _die,
    "child": _child_then_hang,
    "note_and_hang": _note_and_hang,
    "print": _print,
    "chatter": lambda: print("x" * 3_000_000),
    "unserialisable": lambda: {1, 2},
    "huge": lambda: "x" * 10_000_000,
    "modules": lambda: sorted(set(sys.modules) & {"torch", "transformers", "turnpoint.config"}),
    "nan": lambda: float("nan"),
}
