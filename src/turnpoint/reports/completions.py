"""Some real completions of a step as a small table: what the figures are made of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import chop_cells
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from turnpoint.reports.rollout_metrics import completion_length, is_truncated
from turnpoint.reports.text import cut, number
from turnpoint.types import Group, Member

ROWS = 4
_LINES = 3  # of one completion at most
_COLUMNS = ("reward", "tokens", "", "")
_TEXT_FROM = 28  # cells before the text: indent, reward, tokens, label and gaps


def choose_samples(groups: Sequence[Group], *, turn: int, rows: int = ROWS) -> list[tuple[Group, Member]]:
    """Returns `rows` rollouts of different groups; the next `turn` goes on where this one stopped.

    Round robin over the groups that have members, and over a group's members when it comes round again.
    """
    filled = [group for group in groups if group.members]
    chosen: list[tuple[Group, Member]] = []
    for place in range(turn * rows, turn * rows + min(rows, len(filled))):
        lap, index = divmod(place, len(filled))
        group = filled[index]
        chosen.append((group, group.members[(lap + index) % len(group.members)]))
    return chosen


def completions_table(samples: Sequence[tuple[Group, Member]], *, width: int) -> Padding:
    """Returns reward and tokens beside the end of the prompt and the completion, its middle left out.

    A "+" after the tokens: the rollout ran into the length limit.
    """
    room = max(width - _TEXT_FROM, 10)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for group, member in samples:
        tokens = f"{completion_length(group, member)}{'+' if is_truncated(member) else ''}"
        table.add_row(_reward(member), tokens, Text("prompt", "dim"), _prompt(group, room))
        table.add_row("", "", Text("answer", "dim"), _answer(member, room))
    return Padding(table, (0, 0, 0, 2))


def _reward(member: Member) -> str:
    return "none" if member.verdict.reward is None else number(member.verdict.reward)


def _prompt(group: Group, width: int) -> Text:
    return Text(cut(group.task.question, width, "end"), "dim")


def _answer(member: Member, width: int) -> Text:
    spare = _LINES - 1  # a wide character may leave the last cell of a line empty
    return Text("\n".join(chop_cells(cut(member.text, _LINES * width - spare, "both"), width)))
