"""A recipe on a tiny model, loaded and ready to be examined."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from turnpoint.assemble import load_policy, load_problems, open_verifier
from turnpoint.config import load_recipe
from turnpoint.diagnosis import Check, Diagnosis, Subject, examine
from turnpoint.diagnosis.room import Room
from turnpoint.reports.terminal import Terminal

T = TypeVar("T")
GIGABYTE = 1 << 30


@dataclass(frozen=True)
class FixedRoom:
    """Memory of a given size."""

    size: int = 64 * GIGABYTE
    held: int = GIGABYTE

    def used(self) -> int:
        return self.held

    def capacity(self) -> int:
        return self.size

    def peak(self, work: Callable[[], T]) -> tuple[T, int]:
        return work(), self.held


def silent() -> Terminal:
    """A terminal that nobody reads."""
    return Terminal(Console(file=io.StringIO()), heartbeat=1000)


@contextmanager
def subject_of(
    recipe: Path, *overrides: str, room: Room | None = None, seconds: float = 10.0
) -> Generator[Subject]:
    """Yields the recipe with its model loaded and its verifier running."""
    config = load_recipe(recipe, overrides)
    problems = load_problems(config)
    with open_verifier(config) as verifier:
        yield Subject(
            config=config,
            problems=problems,
            policy=load_policy(config, problems.examples),
            verifier=verifier,
            terminal=silent(),
            room=room or FixedRoom(),
            seconds=seconds,
        )


def diagnose(subject: Subject) -> Diagnosis:
    """Returns the diagnosis of `subject`."""
    return asyncio.run(examine(subject))


def check(diagnosis: Diagnosis, name: str) -> Check:
    """Returns the one check of that name."""
    (found,) = [check for check in diagnosis.checks if check.name == name]
    return found


def names(checks: Sequence[Check], status: str) -> list[str]:
    """Returns the names of the checks with that status."""
    return [check.name for check in checks if check.status == status]
