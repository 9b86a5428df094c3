"""How hard problems are for a policy: the share of its rollouts that pass, problem by problem.

Every rate is appended to a file as soon as it is known, so that work that stops goes on where it was:

    {"turnpoint": "pass rates", "depends_on": {...}}          what the rates depend on
    {"task": "sums/7", "passed": 3, "valid": 8, "invalid": {}}
"""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnpoint.errors import RunFolderError
from turnpoint.rollout.concurrency import all_of
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import Group, Json, Task, TokenKind

_MARK = "pass rates"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """How often one problem was solved.

    >>> PassRate(task_id="sums/7", passed=3, valid=8).rate
    0.375
    """

    task_id: str
    passed: int  # rollouts
    valid: int  # rollouts with a reward
    invalid: Mapping[str, int] = field(default_factory=dict[str, int])  # rollouts without one, by reason

    def __post_init__(self) -> None:
        counts = (self.passed, self.valid)
        if type(self.task_id) is not str or any(type(count) is not int for count in counts):
            raise ValueError(f"task {self.task_id!r} with counts {counts}")
        if not 0 <= self.passed <= self.valid:
            raise ValueError(f"{self.passed} of {self.valid} rollouts passed")

    @property
    def rate(self) -> float | None:
        """The share of valid rollouts that passed; None without a valid one."""
        return self.passed / self.valid if self.valid else None


def pass_rate(group: Group) -> PassRate:
    """Returns how often the task of `group` was solved; invalid members are counted apart."""
    verdicts = [member.verdict for member in group.members]
    return PassRate(
        task_id=group.task.id,
        passed=sum(verdict.passed for verdict in verdicts),
        valid=sum(verdict.valid for verdict in verdicts),
        invalid=Counter(verdict.reason for verdict in verdicts if not verdict.valid),
    )


async def judge_tasks(
    tasks: Sequence[Task],
    rollouter: Rollouter,
    *,
    at_once: int,
    finished: Callable[[PassRate, int], None],
) -> None:
    """Calls `finished(rate, generated tokens)` for each of `tasks` as soon as its rollouts are judged.

    At most `at_once` groups are in flight. A rate depends on the task's id, not on the others nor on their
    order. Raises as `Rollouter.group` does, with every other rollout cancelled.
    """
    room = asyncio.Semaphore(at_once)

    async def judge(task: Task) -> None:
        async with room:
            group = await rollouter.group(task, group_id=f"filter/{task.id}")
        finished(pass_rate(group), group.account.tokens[TokenKind.ROOT])

    await all_of(judge(task) for task in tasks)


class RatesFile:
    """Pass rates on disk, to which new ones are appended; `known` holds all of them by task id.

    A context manager, since one process at a time may hold it. A file that is not there begins with the
    first rate. Raises RunFolderError when another process holds it, when it is no such file or its rates
    depend on something else than `depends_on` (it is then as it was), and when it cannot be read or written.
    """

    def __init__(self, path: Path, depends_on: Mapping[str, Json]) -> None:
        self._path = path
        self._header: dict[str, Json] = {"turnpoint": _MARK, "depends_on": dict(depends_on)}
        self.known: dict[str, PassRate] = {}
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise RunFolderError(f"{path}: {error.strerror or error}") from error
        try:
            self._lock()
            self._begun = self._read()
        except BaseException:
            self._file.close()
            raise

    @staticmethod
    def begun(path: Path) -> bool:
        """Whether `path` holds rates, or at least their header."""
        try:
            with path.open("rb") as file:
                return json.loads(file.readline())["turnpoint"] == _MARK
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def __enter__(self) -> RatesFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._begun:
            self._path.unlink(missing_ok=True)  # nothing came into it
        self._file.close()

    def append(self, rate: PassRate) -> None:
        """Adds a rate; it is in the file when this returns."""
        row: dict[str, Json] = {
            "task": rate.task_id,
            "passed": rate.passed,
            "valid": rate.valid,
            "invalid": dict(rate.invalid),
        }
        self._write([row] if self._begun else [self._header, row])
        self._begun = True
        self.known[rate.task_id] = rate

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunFolderError(
                f"{self._path} cannot be locked; another turnpoint filter writes to it: wait, or choose "
                f"another output"
            ) from error

    def _read(self) -> bool:
        """Reads what is there and returns whether there is something; a torn last line is removed."""
        self._file.seek(0)
        content = self._file.readall()
        whole = content.rfind(b"\n") + 1
        if whole or not _line(self._header).startswith(content):  # an empty one and a torn header are ours
            lines = content[:whole].splitlines()
            self._check(lines[0] if lines else content)
            for number, line in enumerate(lines[1:], start=2):
                rate = self._rate(line, number)
                self.known[rate.task_id] = rate
        if whole < len(content):
            self._file.truncate(whole)  # left by a crash
        return whole > 0

    def _check(self, line: bytes) -> None:
        try:
            header = json.loads(line)
            mark, then = header["turnpoint"], dict[str, Json](header["depends_on"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign() from error
        if mark != _MARK:
            raise self._foreign()
        now: dict[str, Json] = json.loads(json.dumps(self._header))["depends_on"]
        for name in dict.fromkeys([*now, *then]):
            if now.get(name) != then.get(name):
                raise RunFolderError(
                    f"{self._path} holds pass rates for {name} = {_short(then.get(name))}, and now it is "
                    f"{_short(now.get(name))}: delete it, or choose another output"
                )

    def _rate(self, line: bytes, number: int) -> PassRate:
        try:
            row = json.loads(line)
            return PassRate(
                task_id=row["task"], passed=row["passed"], valid=row["valid"], invalid=row["invalid"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self._path}, line {number}: no pass rate: {error!r}; delete the line, and the problem is "
                f"judged again"
            ) from error

    def _foreign(self) -> RunFolderError:
        return RunFolderError(f"{self._path} exists and holds no pass rates; choose another output")

    def _write(self, rows: Sequence[Mapping[str, Json]]) -> None:
        left = b"".join(_line(row) for row in rows)
        try:
            while left:  # a full disk may take a part, and refuses the next
                left = left[self._file.write(left) :]
        except OSError as error:
            raise RunFolderError(f"{self._path}: {error.strerror or error}") from error


def _line(row: Mapping[str, Json]) -> bytes:
    return json.dumps(dict(row), allow_nan=False).encode("ascii") + b"\n"


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
