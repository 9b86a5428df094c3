"""What a command that was typed leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Answer:
    """Exit status and what was written."""

    status: int
    out: str
    err: str


Command: TypeAlias = Callable[..., Answer]


def is_one_line(answer: Answer, words: str) -> bool:
    """Whether a mistake was answered as mistakes are: status 2, one line that holds `words`."""
    return answer.status == 2 and len(answer.err.splitlines()) == 1 and words in answer.err
