"""How hard problems are for a policy: the share of its rollouts that pass, problem by problem.

Every rate is appended to a file as soon as it is known, so that work that stops goes on where it was:

    {"turnpoint": "pass rates", "depends_on": {...}}          what the rates depend on
    {"task": "sums/7", "passed": 3, "valid": 8, "invalid": {}}
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnpoint.errors import RunFolderError
from turnpoint.rollout.concurrency import all_of
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import Group, Json, Task, TokenKind

PASSED = 0.5  # a reward above this counts as passed

_MARK = "pass rates"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """How often one problem was solved.

    >>> PassRate(task_id="sums/7", passed=3, valid=8).rate
    0.375
    """

    task_id: str
    passed: int  # rollouts with a reward above `PASSED`
    valid: int  # rollouts with a reward
    invalid: Mapping[str, int] = field(default_factory=dict[str, int])  # rollouts without one, by reason

    @property
    def rate(self) -> float | None:
        """The share of valid rollouts that passed; None without a valid one."""
        return self.passed / self.valid if self.valid else None


def pass_rate(group: Group) -> PassRate:
    """Returns how often the task of `group` was solved; invalid members are counted apart."""
    verdicts = [member.verdict for member in group.members]
    rewards = [verdict.reward for verdict in verdicts if verdict.valid and verdict.reward is not None]
    return PassRate(
        task_id=group.task.id,
        passed=sum(reward > PASSED for reward in rewards),
        valid=len(rewards),
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

    A file that is not there begins with the first rate. Raises RunFolderError when the rates in it depend on
    something else than `depends_on`, and when it cannot be read or written.
    """

    def __init__(self, path: Path, depends_on: Mapping[str, Json]) -> None:
        self._path = path
        self._header: dict[str, Json] = {"turnpoint": _MARK, "depends_on": dict(depends_on)}
        self.known: dict[str, PassRate] = {}
        rows = self._rows()
        self._begun = bool(rows)
        for header in rows[:1]:
            self._check(header)
        for number, row in enumerate(rows[1:], start=2):
            rate = self._rate(row, number)
            self.known[rate.task_id] = rate

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

    def _rows(self) -> list[Any]:
        """Returns what stands in the file's lines; a torn last one, left by a crash, is removed."""
        try:
            if not self._path.exists():
                return []
            content = self._path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(self._path, whole)
            return [json.loads(line) for line in content[:whole].splitlines()]
        except OSError as error:
            raise RunFolderError(f"{self._path}: {error.strerror or error}") from error
        except ValueError as error:
            raise self._foreign() from error

    def _check(self, header: Any) -> None:
        try:
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

    def _rate(self, row: Any, number: int) -> PassRate:
        try:
            return PassRate(
                task_id=row["task"], passed=row["passed"], valid=row["valid"], invalid=row["invalid"]
            )
        except (KeyError, TypeError) as error:
            raise RunFolderError(f"{self._path}, line {number}: no pass rate: {error!r}") from error

    def _foreign(self) -> RunFolderError:
        return RunFolderError(f"{self._path} exists and holds no pass rates; choose another output")

    def _write(self, rows: Sequence[Mapping[str, Json]]) -> None:
        text = "".join(json.dumps(dict(row), allow_nan=False) + "\n" for row in rows)
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except OSError as error:
            raise RunFolderError(f"{self._path}: {error.strerror or error}") from error


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
