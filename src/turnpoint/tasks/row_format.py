"""What a row format is, and what all of them ask of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turnpoint.tasks.rows import Columns
from turnpoint.types import Json, Message


class InvalidRow(ValueError):
    """A row that cannot be a task; the text is the reason, the same for all rows with this fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a format read from a row."""

    messages: tuple[Message, ...]
    answer: str
    used: frozenset[str]  # columns of which nothing is left to keep
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json])  # kept beside what is left


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """How one family of datasets writes its rows. `read` raises InvalidRow."""

    name: str
    needs: str
    fits: Callable[[Columns], bool]
    read: Callable[[Columns], Problem]


def has(columns: Columns, *names: str) -> bool:
    """Returns whether there is something in each of these columns."""
    return all(columns.get(name) not in (None, "") for name in names)


def usable_text(text: str, what: str) -> str:
    """Returns `text` without outer space; no tokenizer takes lone surrogates, so they are refused."""
    stripped = text.strip()
    if not stripped:
        raise InvalidRow(f"{what} is empty")
    if not stripped.isascii() and any("\ud800" <= character <= "\udfff" for character in stripped):
        raise InvalidRow(f"{what} holds half a surrogate pair")
    return stripped


def whole_text(text: str, name: str) -> str:
    """Returns `text` as it is, outer blanks and line ends included; raises InvalidRow when it is unusable."""
    usable_text(text, name)
    return text
