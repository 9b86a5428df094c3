"""Finds the program in what a policy wrote: the last closed fenced block after any thinking."""

from __future__ import annotations

import re

from turnpoint.verifiers.math.extract import after_thinking

_FENCE = re.compile(r"^[ \t]*```([^\n`]*)$", re.MULTILINE)


def last_block(response: str) -> str | None:
    r"""Returns what the last closed block holds, or None; a block that was never closed was cut, and is none.

    >>> last_block("First:\n```python\nprint(1)\n```\nBetter:\n```\nprint(2)\n```\nDone.")
    'print(2)\n'
    >>> last_block("```python\nprint(1)\n```\n```python\nprint(") is None
    True
    """
    text = after_thinking(response)
    opened: re.Match[str] | None = None
    found: str | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[1].strip():  # only a bare fence closes
            found, opened = text[opened.end() + 1 : fence.start()], None
    return found if opened is None else None
