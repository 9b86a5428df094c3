"""The column of a dataset that holds what the model should write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnpoint.errors import DataError
from turnpoint.tasks.dataset import Dataset
from turnpoint.tasks.row_format import InvalidRow, whole_text
from turnpoint.types import Task

_GOLD = "answer"  # where no column of this name is left, the task's gold answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedTask:
    """A task and the text that solves it, as the row has it."""

    task: Task
    text: str


def read_solutions(dataset: Dataset, column: str) -> tuple[list[SolvedTask], Counter[str]]:
    """Returns the tasks whose row has text in `column`, in order, and the others counted by reason.

    `answer` is the row's own column of that name where the row format keeps one beside the gold answer
    (gsm8k's whole solution), else the gold answer. Raises DataError that names the columns there are when no
    row has `column`.
    """
    solved: list[SolvedTask] = []
    left_out: Counter[str] = Counter()
    for task in dataset.tasks:
        try:
            solved.append(SolvedTask(task=task, text=_text(task, column)))
        except InvalidRow as error:
            left_out[str(error)] += 1
    if left_out[f"no column {column}"] == len(dataset.tasks):
        columns = dict.fromkeys([_GOLD, *(name for task in dataset.tasks for name in task.metadata)])
        raise DataError(
            f"solution = {column!r}: {dataset.name} has no such column; it has {', '.join(columns)}"
        )
    return solved, left_out


def count_problems(solved: Iterable[SolvedTask]) -> int:
    """Returns how many different prompts `solved` have: a problem may have several solutions."""
    return len({each.task.messages for each in solved})


def split_problems(
    solved: Sequence[SolvedTask], count: int
) -> tuple[tuple[SolvedTask, ...], tuple[SolvedTask, ...]]:
    """Returns (rest, held out): all solutions of the last `count` problems are held out.

    Problems are in the order in which they appear first; solutions stay in theirs. No prompt is in both:
    otherwise what is held out would have been seen. The rest is empty when there are no more problems.
    """
    problems = [*dict.fromkeys(each.task.messages for each in solved)]
    apart = frozenset(problems[max(0, len(problems) - count) :])
    rest = tuple(each for each in solved if each.task.messages not in apart)
    return rest, tuple(each for each in solved if each.task.messages in apart)


def _text(task: Task, column: str) -> str:
    if column not in task.metadata and column != _GOLD:
        raise InvalidRow(f"no column {column}")
    value = task.metadata.get(column, task.answer)
    if not isinstance(value, str):
        raise InvalidRow(f"{column} is {'null' if value is None else f'a {type(value).__name__}'}, not text")
    return whole_text(value, column)
