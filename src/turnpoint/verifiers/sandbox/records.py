"""What goes into the sandbox and what comes out: programs, inputs, limits, runs.

Expected outputs have no place here: who runs a program never knows what it should have said.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.types import Json


class Isolation(enum.StrEnum):
    """How much stands between a program and the machine; docs/sandbox.md says what each level keeps out."""

    FULL = "full"  # limits, and the kernel refuses files, network, processes and signals
    SYSCALLS = "syscalls"  # as FULL, but a program can read (not write) the user's files: no Landlock needed
    LIMITS = "limits"  # limits only: a program has the user's files and network


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one input may cost a program.

    >>> Limits(wall=1.0).output_bytes
    1048576
    """

    wall: float = 6.0  # seconds by the clock
    total: float = 120.0  # seconds by the clock for all inputs of a program; later ones are NOT_RUN
    cpu: float = 6.0  # seconds of the processor, rounded up to whole ones by the kernel
    memory_bytes: int = 1 << 30  # of address space
    processes: int = 32  # threads of the program; it cannot start processes under Isolation.FULL
    file_bytes: int = 1 << 20  # the largest file, where one can be written at all
    open_files: int = 64
    output_bytes: int = 1 << 20  # of stdout; the run ends when there is more

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"limit {name}={getattr(self, name)}: must be above 0")


@dataclass(frozen=True, slots=True)
class ScriptEntry:
    """The program runs as `__main__`: it reads stdin and prints."""


@dataclass(frozen=True, slots=True)
class FunctionEntry:
    """The program defines a function that is called, or a class whose method `name` is called."""

    name: str
    class_name: str | None = None


Entry: TypeAlias = "ScriptEntry | FunctionEntry"


@dataclass(frozen=True, slots=True)
class Program:
    """Untrusted Python source and how it is entered."""

    source: str
    entry: Entry = ScriptEntry()


@dataclass(frozen=True, slots=True)
class StdinInput:
    """Text on stdin of a script."""

    text: str


@dataclass(frozen=True, slots=True)
class CallInput:
    """Arguments of one call of the function."""

    arguments: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class AssertInput:
    """Statements that run after the program in its namespace; DONE when they reached their end.

    The end is told by a secret that the program was not given; but it lives in the same process, so that
    this is weaker than comparing a value outside (a program can replace what `assert` looks at).
    """

    source: str


Input: TypeAlias = "StdinInput | CallInput | AssertInput"


class Outcome(enum.StrEnum):
    """How a run ended."""

    DONE = "done"
    RAISED = "raised"  # an exception that nobody caught
    EXITED = "exited"  # with a status that is not 0, or before a call or an assertion came to its end
    TIMEOUT = "timeout"  # the limit by the clock
    CPU = "cpu"  # the limit of processor time
    MEMORY = "memory"
    OUTPUT = "output"  # more output than the limit
    KILLED = "killed"  # by a signal
    NOT_RUN = "not_run"  # the program does not compile or has no such function, or no time was left
    UNREADABLE = "unreadable"  # the function's result is no JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a program did with one input."""

    outcome: Outcome
    stdout: str = ""  # decoded with replacement, cut at the limit
    error: str = ""  # the last line of the traceback, or why it ended; printable, at most 300 characters
    value: Json = None  # the function's result; only when DONE
    seconds: float = 0.0  # by the clock
