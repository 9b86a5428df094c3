"""What a diagnosis is made of: one line per check, and whether the recipe can run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from turnpoint.reports.text import plural


class Status(enum.StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"  # it runs, and something about it should be known
    FAILED = "failed"  # it must not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str  # stable, for filters: "log-probabilities", "forks", "stop", ...
    status: Status
    text: str  # one line: the figure, what it means, the way out


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Whether a recipe can run on this machine, and why."""

    name: str  # of the run
    checks: tuple[Check, ...]
    first_prompt: tuple[str, ...]  # lines, made visible, special tokens included
    first_prompt_tokens: int

    @property
    def can_run(self) -> bool:
        """Whether no check failed."""
        return all(check.status is not Status.FAILED for check in self.checks)

    @property
    def exit_status(self) -> int:
        """0 if it can run, 2 if it must not."""
        return 0 if self.can_run else 2

    @property
    def verdict(self) -> str:
        """One line."""
        counts = {status: sum(check.status is status for check in self.checks) for status in Status}
        if not self.can_run:
            names = ", ".join(check.name for check in self.checks if check.status is Status.FAILED)
            return f"must not run: {names}"
        warnings = plural(counts[Status.WARNING], "warning")
        return f"can run: {counts[Status.OK]} of {len(self.checks)} checks ok, {warnings}"


def ok(name: str, text: str) -> Check:
    """Returns a check that found nothing wrong."""
    return Check(name=name, status=Status.OK, text=text)


def warning(name: str, text: str) -> Check:
    """Returns a check that found something that should be known."""
    return Check(name=name, status=Status.WARNING, text=text)


def failed(name: str, text: str) -> Check:
    """Returns a check that found why the recipe must not run."""
    return Check(name=name, status=Status.FAILED, text=text)
