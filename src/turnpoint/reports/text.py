"""Text and numbers as people read them: nothing hidden, nothing too wide, no digits that mean nothing.

Completions hold whatever a model can write. `visible` and `cut` make any of it printable in a known number
of terminal cells, wide (CJK) characters included.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection
from typing import Literal, TypeAlias

from rich.cells import cell_len

NEWLINE = "\u21b5"  # a sign of its own: a backslash and an n also begin \neq
_NAMED = {"\n": NEWLINE, "\t": "\\t", "\r": "\\r"}
_HIDDEN = {
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
}  # control, format, surrogate, private, unassigned, breaks
_MARK = "..."
_STRETCHES = 8  # of steps that are named

Keep: TypeAlias = Literal["start", "end", "both"]


def visible(text: str) -> str:
    """Returns `text` with every character that would move, hide or break something written out.

    >>> visible("a\\tb\\x1b[31m\\ud800")
    'a\\\\tb\\\\x1b[31m\\\\ud800'
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cut(text: str, cells: int, keep: Keep = "start") -> str:
    """Returns `visible(text)` in at most `cells` terminal cells, with "..." where something is left out.

    Reads only as much of `text` as can show.

    >>> cut("0123456789", 8), cut("0123456789", 8, "end"), cut("0123456789", 8, "both")
    ('01234...', '...56789', '012...89')
    """
    cells = max(cells, 0)
    if len(text) <= 4 * cells and cell_len(whole := visible(text)) <= cells:
        return whole
    mark = _MARK[:cells]
    room = cells - len(mark)
    left = {"start": room, "end": 0, "both": room - room // 2}[keep]
    return _first(text, left) + mark + _last(text, room - left)


def _first(text: str, cells: int) -> str:
    kept = ""
    for character in text[: 4 * cells]:
        longer = kept + _visible(character)
        if cell_len(longer) > cells:
            break
        kept = longer
    return kept


def _last(text: str, cells: int) -> str:
    kept = ""
    for character in reversed(text[-4 * cells :] if cells else ""):
        longer = _visible(character) + kept
        if cell_len(longer) > cells:
            break
        kept = longer
    return kept


def percent(share: float) -> str:
    """Returns a share as a whole per cent; what is not quite 0 or 100 never looks like it.

    >>> percent(0.314), percent(0.001), percent(0.999), percent(1.0)
    ('31 %', '<1 %', '>99 %', '100 %')
    """
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 <= share < 1:
        return ">99 %"
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Returns a count with thousands marked, or three significant digits of a fraction.

    >>> number(16384), number(0.0034567), number(1e-6), number(250.4)
    ('16,384', '0.00346', '1e-06', '250')
    """
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Returns seconds as people say them.

    >>> duration(8.13), duration(125), duration(3725)
    ('8.1 s', '2 min 05 s', '1 h 02 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Returns a count with its noun.

    >>> plural(1, "step"), plural(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def which_steps(steps: Collection[int]) -> str:
    """Names steps, neighbours together, the first few of many runs of them.

    >>> which_steps({1, 2, 3, 5}), which_steps([7])
    ('steps 1 to 3, 5', 'step 7')
    """
    stretches: list[list[int]] = []
    for step in sorted(steps):
        if stretches and step == stretches[-1][-1] + 1:
            stretches[-1][1:] = [step]
        else:
            stretches.append([step])
    named = [" to ".join(map(str, ends)) for ends in stretches[:_STRETCHES]]
    more = ", ..." if len(stretches) > _STRETCHES else ""
    return f"{'step' if len(steps) == 1 else 'steps'} {', '.join(named)}{more}"
