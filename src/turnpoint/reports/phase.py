"""A phase of work while it runs: how far it is, how fast, and whether anything still moves."""

from __future__ import annotations

import time
from typing import final

from turnpoint.reports.text import duration, number

_QUIET = 5.0  # seconds without progress from which it is said


@final
class Phase:
    """Counts finished items and tokens of one phase; may be read from another thread while it counts."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name = name
        self._total = total
        self._items = 0
        self._tokens = 0
        self._started = self._moved = time.monotonic()

    def advance(self, items: int = 1, tokens: int = 0) -> None:
        """Counts finished items and the tokens they took."""
        self._items += items
        self._tokens += tokens
        self._moved = time.monotonic()

    def expect(self, items: int) -> None:
        """Adds to what the phase has to do."""
        self._total = items + (self._total or 0)

    def describe(self) -> str:
        """Returns "rollouts 37/64  412 tokens/s  8.1 s": tokens are averaged over the phase so far."""
        now = time.monotonic()
        elapsed = now - self._started
        count = "" if self._total is None else f" {number(self._items)}/{number(self._total)}"
        parts = [f"{self.name}{count}"]
        if self._tokens and elapsed > 0:
            parts.append(f"{number(round(self._tokens / elapsed))} tokens/s")
        parts.append(duration(elapsed))
        if self._items and now - self._moved > _QUIET:
            parts.append(f"(nothing finished for {duration(now - self._moved)})")
        return "  ".join(parts)
