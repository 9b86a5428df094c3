"""What a page has room for: groups are let go where their step has most of them, the flattest first.

Every group keeps its row. Token detail goes before texts, until it holds less than half of the room.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

Part: TypeAlias = Literal["texts", "tokens"]


@dataclass(slots=True)
class _Shelf:
    """The blobs of one part, by step, in a heap each: the smallest spread on top."""

    size: int = 0
    steps: dict[int, list[tuple[float, int, str]]] = field(
        default_factory=lambda: defaultdict[int, list[tuple[float, int, str]]](list)
    )

    def put(self, step: int, spread: float, row: int, blob: str) -> None:
        heapq.heappush(self.steps[step], (spread, -row, blob))
        self.size += len(blob)

    def let_go(self) -> None:
        fullest = max(self.steps.values(), key=len)
        self.size -= len(heapq.heappop(fullest)[2])


@final
class Room:
    """Holds at most `limit` characters of blobs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shelves: dict[Part, _Shelf] = {"texts": _Shelf(), "tokens": _Shelf()}

    def put(self, *, step: int, spread: float, row: int, texts: str, tokens: str) -> None:
        """Adds the blobs of the group in `row`, and lets others go when there is too much."""
        self._shelves["texts"].put(step, spread, row, texts)
        self._shelves["tokens"].put(step, spread, row, tokens)
        while self.size > self._limit:
            tight = self._shelves["tokens"].size >= self._limit // 2
            self._shelves["tokens" if tight else "texts"].let_go()

    @property
    def size(self) -> int:
        """Characters held."""
        return sum(shelf.size for shelf in self._shelves.values())

    def kept(self, part: Part) -> Iterator[tuple[int, str]]:
        """Yields (row, blob) of what is still there, by row."""
        shelves = self._shelves[part].steps.values()
        yield from sorted((-row, blob) for shelf in shelves for _, row, blob in shelf)
