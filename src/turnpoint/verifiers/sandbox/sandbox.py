"""Runs untrusted programs, many at a time, in bounded time.

One zygote (`_zygote`) per worker: a fresh isolated interpreter without the trainer's environment, which forks
a confined child per input. So every input, not only every program, meets an interpreter nothing has touched,
at the price of a fork. The pool, its limits by the clock, and its death with this process are those of
`verifiers/workers.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from turnpoint.errors import RecipeError, SandboxError, VerifierError
from turnpoint.types import Json
from turnpoint.verifiers.sandbox.records import (
    AssertInput,
    CallInput,
    FunctionEntry,
    Input,
    Isolation,
    Limits,
    Outcome,
    Program,
    Run,
    ScriptEntry,
    StdinInput,
)
from turnpoint.verifiers.workers import Reply, Status, WorkerPool, WorkerSettings

_GRACE = 20.0  # seconds beyond Limits.total for forks, pipes and a busy machine
_ERROR_KEPT = 300  # characters
_SHARED_PACKAGES = ("numpy",)
_START = (
    "import sys; sys.path.insert(0, {root!r}); from turnpoint.verifiers.sandbox._zygote import main; main()"
)
ISOLATION = {
    Isolation.FULL: "limits, Landlock (reads the interpreter), seccomp (no network, processes or writing)",
    Isolation.SYSCALLS: "limits and seccomp (no network, no processes, writes nothing); can READ YOUR FILES",
    Isolation.LIMITS: "limits only; programs have YOUR FILES, NETWORK AND PROCESSES",
}


class Sandbox:
    """Runs programs under `limits` at a level of `isolation`, `workers` at a time (the machine's cores).

    Raises RecipeError in one line when this host cannot give the isolation: it was tried, once, at start.

    >>> with Sandbox(limits=Limits(wall=5.0), workers=1, isolation=Isolation.LIMITS) as sandbox:
    ...     sandbox.run_now(Program("print(int(input()) ** 2)"), [StdinInput("3")])[0].stdout
    '9\\n'
    """

    def __init__(
        self,
        *,
        limits: Limits,
        workers: int | None = None,
        isolation: Isolation = Isolation.FULL,
        python: str = sys.executable,
    ) -> None:
        self._limits = limits
        self._isolation = isolation
        root = str(Path(__file__).resolve().parents[3])
        settings = WorkerSettings(
            factory="sandbox",
            arguments=[isolation.value, _package_folders()],
            timeout=limits.total + _GRACE,
            calls_per_worker=100_000,  # a zygote runs no program, so that it has little to forget
            command=(python, "-I", "-S", "-B", "-X", "utf8", "-c", _START.format(root=root)),
        )
        self._pool = WorkerPool(settings, workers=workers or len(os.sched_getaffinity(0)))
        try:
            self._pool.wait_until_ready()
        except VerifierError as error:
            self._pool.close()
            raise RecipeError(f"isolation {isolation.value}: {error}") from error

    def describe(self) -> str:
        """Returns the isolation in force, in words."""
        return f"{self._isolation.value}: {ISOLATION[self._isolation]}"

    def run_now(self, program: Program, inputs: Sequence[Input]) -> list[Run]:
        """Returns one run per input, in order; blocks, from any thread, for a bounded time per program.

        Raises SandboxError when the sandbox itself fails, ValueError for an input that fits no such entry.
        """
        reply = self._pool.call(*self._request(program, inputs))
        return _runs(reply, program, inputs)

    async def run(self, program: Program, inputs: Sequence[Input]) -> list[Run]:
        """As `run_now`, without blocking the event loop; cancelling kills what runs."""
        reply = await self._pool.call_async(*self._request(program, inputs))
        return _runs(reply, program, inputs)

    def pids(self) -> list[int]:
        """Returns the process ids of the zygotes."""
        return self._pool.pids()

    def close(self) -> None:
        """Kills all processes; what waits gets a VerifierError."""
        self._pool.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _request(self, program: Program, inputs: Sequence[Input]) -> tuple[Json, Json, Json]:
        entry = program.entry
        function, owner = (entry.name, entry.class_name) if isinstance(entry, FunctionEntry) else (None, None)
        limits = {name: cast("Json", getattr(self._limits, name)) for name in Limits.__slots__}
        return (
            {"source": program.source, "function": function, "class": owner},
            [_to_json(entry, given) for given in inputs],
            limits,
        )


def _package_folders() -> list[Json]:
    """Returns the folders of the packages that programs may import; found without importing them."""
    found = [importlib.util.find_spec(name) for name in _SHARED_PACKAGES]
    return [os.path.dirname(spec.origin) for spec in found if spec is not None and spec.origin is not None]


def _to_json(entry: ScriptEntry | FunctionEntry, given: Input) -> Json:
    match given:
        case StdinInput(text) if isinstance(entry, ScriptEntry):
            return {"kind": "stdin", "text": text}
        case CallInput(arguments) if isinstance(entry, FunctionEntry):
            return {"kind": "call", "arguments": list(arguments)}
        case AssertInput(source):
            return {"kind": "assert", "source": source}
        case _:
            raise ValueError(f"{type(given).__name__} does not fit a program with {type(entry).__name__}")


def _runs(reply: Reply, program: Program, inputs: Sequence[Input]) -> list[Run]:
    if reply.status is not Status.DONE:
        raise SandboxError(f"sandbox: {reply.status.value}: {reply.reason}")
    raw = cast("list[dict[str, Any]]", reply.value)
    return [_run(given, one) for given, one in zip(inputs, raw, strict=True)]


def _run(given: Input, raw: dict[str, Any]) -> Run:
    """Judges how a child ended; its report is the program's own word and only read for what that is worth."""
    if raw["end"] == "not_run":
        return Run(outcome=Outcome.NOT_RUN, error=raw["error"])
    outcome, error, value = _how_it_ended(given, raw)
    return Run(
        outcome=outcome,
        stdout=raw["stdout"],
        error=_printable(error),
        value=value if outcome is Outcome.DONE else None,
        seconds=raw["seconds"],
    )


def _how_it_ended(given: Input, raw: dict[str, Any]) -> tuple[Outcome, str, Json]:
    killed = {
        "timeout": (Outcome.TIMEOUT, "out of time"),
        "output": (Outcome.OUTPUT, "too much output"),
        "threads": (Outcome.KILLED, "too many threads"),
    }
    if raw["end"]:
        return (*killed[raw["end"]], None)
    code = os.waitstatus_to_exitcode(raw["status"])
    if code < 0:
        if raw["out_of_cpu"] or -code == signal.SIGXCPU:
            return Outcome.CPU, "out of processor time", None
        return Outcome.KILLED, f"killed by signal {-code}", None
    if not raw["report"]:  # it left by os._exit
        if code == 0 and isinstance(given, StdinInput):
            return Outcome.DONE, "", None
        return Outcome.EXITED, f"exited with status {code}", None
    outcome, error, value = _read_report(raw["report"])
    if outcome is Outcome.DONE and isinstance(given, AssertInput) and not raw["finished"]:
        return Outcome.EXITED, "ended before the assertions did", None
    return outcome, error, value


_REPORTABLE = ("done", "raised", "exited", "memory", "not_run", "unreadable")


def _read_report(text: str) -> tuple[Outcome, str, Json]:
    """Returns what a child says became of it; what it forged may be anything."""
    unreadable = Outcome.UNREADABLE, "the report of the program's process cannot be read", None
    try:
        report = json.loads(text)
        if report["outcome"] not in _REPORTABLE:
            return unreadable
        return Outcome(report["outcome"]), str(report.get("error", "")), report.get("value")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return unreadable


def _printable(text: str) -> str:
    line = " ".join(text.split())[:_ERROR_KEPT]
    return "".join(character if character.isprintable() else "?" for character in line)
