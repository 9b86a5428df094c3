"""What teachers said about a group's tokens, as a line of teachers.jsonl and back, checked by the group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnpoint._lines import Record, Step, read_records, silently
from turnpoint.errors import RunFolderError
from turnpoint.rollout.group_json import Packed, packed
from turnpoint.teachers.detail import Gaps, gaps_of
from turnpoint.teachers.teaching import Word
from turnpoint.types import Floats, Group, Json, Segment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Said:
    """A teacher's log-probabilities of the tokens of some segments of a group."""

    teacher: str  # its name
    logprobs: Mapping[int, Floats]  # [n] nats, by segment

    @staticmethod
    def of(teacher: str, word: Word) -> Said:
        """Returns what is kept of a word."""
        return Said(teacher=teacher, logprobs={segment: it.logprobs for segment, it in word.items()})

    def to_json(self, *, step: int, group: str) -> dict[str, Json]:
        """Returns the line of a group of `step`; log-probabilities as in rollouts.jsonl."""
        return {
            "step": step,
            "group": group,
            "teacher": self.teacher,
            "logprobs": {str(segment): packed(values) for segment, values in self.logprobs.items()},
        }

    def gaps(self, segment: Segment) -> Gaps:
        """Returns [n] d = log p_teacher - log p_policy, nats, against the law that sampled; NaN: no word."""
        theirs = self.logprobs.get(segment.id)
        if theirs is None or segment.logprobs is None:
            return np.full(len(segment), np.nan)
        return gaps_of(theirs, segment.logprobs)

    def mean(self, group: Group, member: int) -> float | None:
        """Returns the mean of d over what `member` generated; None where nothing was said about it."""
        values = np.concatenate([np.zeros(0), *[self.gaps(segment) for segment in group.generated(member)]])
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else None

    def check(self, group: Group, *, path: Path) -> None:
        """Raises RunFolderError unless there is a log-probability for each token of each segment."""
        segments = group.tree.segments
        for segment, values in self.logprobs.items():
            tokens = len(segments[segment]) if segment < len(segments) else None
            if tokens != len(values):
                there = "there is none" if tokens is None else f"it has {tokens} tokens"
                raise RunFolderError(
                    f"{path}: group {group.id}: {len(values)} log-probabilities of segment {segment}, and "
                    f"{there} in rollouts.jsonl; mend the line, or delete the file to do without it"
                )


class _Said(Record):
    step: Step
    group: str
    teacher: str
    logprobs: dict[str, Packed]


def _said(row: Any) -> tuple[str, Said]:
    read = _Said.model_validate(row)
    for segment in read.logprobs:
        if not segment.isascii() or not segment.isdecimal():
            raise ValueError(f".logprobs has {segment!r}, which is no segment")
    logprobs = {int(segment): values for segment, values in read.logprobs.items()}
    return read.group, Said(teacher=read.teacher, logprobs=logprobs)


def read_said(path: Path, *, torn: Callable[[str], None] = silently) -> dict[str, Said]:
    """Returns what was said about each group, by its id; nothing without the file.

    A torn last line is skipped, and `torn` told so. Raises RunFolderError for any other line that is none.
    """
    if not path.exists():
        return {}
    try:
        return dict(said for _, said in read_records(path, _said, what="teacher's word", torn=torn))
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from error
