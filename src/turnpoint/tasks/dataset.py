"""A dataset is the tasks in order and the report of how they were read; parts of it are datasets too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from turnpoint.errors import DataError
from turnpoint.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidRows:
    """The rows that were left out for one reason.

    >>> str(InvalidRows(reason="answer is empty", count=2, first="line 17: {'answer': ''}"))
    "answer is empty (2 rows, first: line 17: {'answer': ''})"
    """

    reason: str
    count: int
    first: str  # where it was, and the row, shortened

    def __str__(self) -> str:
        return f"{self.reason} ({_rows(self.count)}, first: {self.first})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """What reading a source found; rows = kept + duplicates + the counts of `invalid`.

    >>> ReadReport(source="sums.jsonl", format="plain", rows=9, kept=8, duplicates=1).lines()
    ['sums.jsonl: 9 rows read as plain, 8 kept', '1 row dropped: the same prompt and answer again']
    """

    source: str
    format: str  # the row format that was used, recognised or given
    rows: int  # read; reading stops once `limit` tasks are kept
    kept: int
    duplicates: int = 0  # said the same as a row before
    told_apart_by: str = "prompt and answer"  # what had to be the same for that
    invalid: tuple[InvalidRows, ...] = ()

    def lines(self) -> list[str]:
        """Returns the report as sentences for people."""
        lines = [f"{self.source}: {_rows(self.rows)} read as {self.format}, {self.kept:,} kept"]
        if self.duplicates:
            lines.append(f"{_rows(self.duplicates)} dropped: the same {self.told_apart_by} again")
        return lines + [f"left out: {rows}" for rows in self.invalid]


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Tasks in a fixed order; ids differ. `report` is about the source, also for a part of the dataset."""

    name: str
    tasks: tuple[Task, ...]
    report: ReadReport

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the tasks in order: ids, messages, answers, metadata; not where they came from.

        Ids belong to it, since the draws of an evaluation depend on them.
        """
        digest = hashlib.sha256()
        for task in self.tasks:
            messages = [[message.role, message.content] for message in task.messages]
            said = json.dumps([task.id, messages, task.answer, dict(task.metadata)], sort_keys=True)
            digest.update(said.encode("ascii") + b"\n")
        return digest.hexdigest()

    def select(self, indices: Iterable[int]) -> Dataset:
        """Returns the dataset of the tasks at `indices`, in that order."""
        return replace(self, tasks=tuple(self.tasks[index] for index in indices))


def split_examples(dataset: Dataset, shots: int) -> tuple[tuple[tuple[str, str], ...], Dataset]:
    """Returns (question, answer) of the first `shots` problems, and the dataset of all others.

    Examples shown in a prompt are thereby never trained or evaluated on; of a problem that is there with
    several solutions the first is shown, and the others are in neither. Raises DataError when nothing would
    be left.
    """
    first = {task.messages: task for task in reversed(dataset.tasks)}
    problems = [*dict.fromkeys(task.messages for task in dataset.tasks)]
    if shots >= len(problems):
        raise DataError(
            f"{dataset.name}: {shots} few-shot examples leave nothing of {len(problems)} tasks; "
            f"lower prompt.shots or bring more tasks"
        )
    shown = problems[:shots]
    examples = tuple((first[messages].question, first[messages].answer) for messages in shown)
    others = frozenset(problems[shots:])
    return examples, dataset.select(
        index for index, task in enumerate(dataset.tasks) if task.messages in others
    )


def holdout(dataset: Dataset, count: int, *, trains: bool = True) -> tuple[Dataset, Dataset]:
    """Returns (rest, held out): the last `count` tasks are kept for evaluation.

    No task is in both and none says the same as another, since duplicates are dropped when reading.
    Raises DataError when there are not so many, and when nothing would be left for what `trains`.
    """
    left = len(dataset.tasks) - count
    if left < trains:
        what = "leaves nothing to train on of" if trains else "takes more than all"
        raise DataError(
            f"{dataset.name}: holding out {count} tasks {what} {len(dataset.tasks)}; lower evaluation.tasks "
            f"or bring more tasks"
        )
    return dataset.select(range(left)), dataset.select(range(left, len(dataset.tasks)))
