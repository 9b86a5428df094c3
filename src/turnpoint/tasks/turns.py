"""Conversations cut into problems: a prefix of what was said, and a turn to write (prefix-conditioned OPD).

    messages   s u1 a1 u2 a2 ... uk ak
    problems   h_1 = s u1,   h_2 = s u1 a1 u2,   ...,   h_k;      for each the policy writes one turn

The prefixes are another's, a teacher's or those of data for fine-tuning, so that the policy is asked where it
would not get by itself; what is trained is its own turn alone. There is no gold answer: the turn that
stood there is kept in the column `reply`, for a verifier of yours or for imitation, and no teacher sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from turnpoint.tasks.formats import read_messages
from turnpoint.tasks.row_format import InvalidRow, Problem
from turnpoint.tasks.rows import Columns, Row
from turnpoint.types import Message

NAME = "turns"
REPLY = "reply"
_MESSAGES, _PROMPT, _ID = "messages", "prompt", "id"


def cut_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yields a row for each turn of the assistant in `messages`, the other columns kept.

    The id is the conversation's own, else its place, and the number of the turn from 0: 17/0, 17/1. A
    conversation that cannot be cut is yielded as it is, for `read_turn` to say why.
    """
    for row in rows:
        try:
            messages = _conversation(row.columns)
        except InvalidRow:
            yield replace(row, columns={_MESSAGES: None, **row.columns})
            continue
        kept = {name: value for name, value in row.columns.items() if name != _MESSAGES}
        own = row.columns.get(_ID, row.index)
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        for turn, index in enumerate(replies):
            prompt = [{"role": it.role, "content": it.content} for it in messages[:index]]
            columns = {_ID: f"{own}/{turn}", _PROMPT: prompt, REPLY: messages[index].content}
            yield replace(row, where=f"{row.where}, turn {turn}", columns={**kept, **columns})


def read_turn(columns: Columns) -> Problem:
    """Returns the problem of a row of `cut_rows`; raises InvalidRow for one that was not cut."""
    if _MESSAGES in columns:
        _conversation(columns)
    return Problem(messages=read_messages(columns, _PROMPT), answer="", used=frozenset({_PROMPT}))


def _conversation(columns: Columns) -> tuple[Message, ...]:
    if columns.get(_MESSAGES) is None:
        raise InvalidRow(f"no {_MESSAGES}")
    for column in (_PROMPT, REPLY):
        if column in columns:
            raise InvalidRow(f"the columns {_MESSAGES} and {column} are both there; take {column} out")
    messages = read_messages(columns, _MESSAGES, last="assistant")
    _check_order([message.role for message in messages])
    return messages


def _check_order(roles: Sequence[str]) -> None:
    """Raises InvalidRow unless the assistant answers a user each time and a system message comes first."""
    if "system" in roles[1:]:
        raise InvalidRow(f"a system message of {_MESSAGES} comes after another message")
    for before, role in zip(["", *roles], roles, strict=False):
        if role == "assistant" and before != "user":
            raise InvalidRow(f"a turn of the assistant in {_MESSAGES} does not follow one of the user")
