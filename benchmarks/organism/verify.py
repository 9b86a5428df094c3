"""The organism's judges: both reward the final answer alone, right or wrong."""

from __future__ import annotations

from typing import Any

from benchmarks.organism.hindsight import record, told
from benchmarks.organism.language import parse_problem
from benchmarks.organism.settings import OrganismSettings


def reward(completion: str, task: Any) -> tuple[bool, str]:
    """Returns whether the completion ends with # and the right digit, and the record of that."""
    return _found(completion, task), record(parse_problem(task.question), completion)


def reward_told(completion: str, task: Any) -> tuple[bool, str]:
    """Returns the same, and with the record the reflection of an oracle."""
    problem = parse_problem(task.question)
    return _found(completion, task), told(problem, completion, OrganismSettings())


def _found(completion: str, task: Any) -> bool:
    return completion.split()[-2:] == ["#", task.answer]
