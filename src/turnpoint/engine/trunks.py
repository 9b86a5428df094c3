"""Keys and values of trunks: prefixes that several decoding rows read, stored once for all of them.

Trunks of one depth lie in one block of memory, so that a step attends over all of them in two matrix
products per layer, however many they are. A row reads at most one trunk of each depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnpoint.engine.rows import Rows
from turnpoint.engine.sharing import Stretch, Trunk
from turnpoint.engine.span import CacheShape, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Who reads what in one block of T trunks; at most R rows read the same one.

    What stands in for nobody is computed and not used.
    """

    block: Rows
    starts: Tensor  # [T] position in its sequences of a trunk's first token
    rows: Tensor  # [T, R] the rows that read a trunk, 0 for nobody
    seen: Tensor  # [T, R] how many of its tokens each row reads, all for nobody
    place: Tensor  # [B] where row b stands in the flat [T * R], 0 if it reads none
    absent: Tensor  # [B] whether it reads none
    whole: bool  # whether everybody sees the whole capacity of the block


class Level:
    """The trunks of one depth."""

    def __init__(self, shape: CacheShape) -> None:
        self.trunks: list[Trunk] = []
        self.block = Rows(shape, grows=False)

    def add(self, new: Sequence[tuple[Trunk, list[Span]]]) -> None:
        """Stores trunks, given the consecutive spans of their tokens."""
        for slot, (trunk, _) in enumerate(new, start=len(self.trunks)):
            trunk.slot = slot
            self.trunks.append(trunk)
        self.block.fit(len(self.trunks), max(len(trunk) for trunk in self.trunks))
        for trunk, spans in new:
            self.view(trunk, trunk.start, len(trunk.ids)).fill(spans)

    def remove(self, trunk: Trunk) -> None:
        """Frees the place of a trunk that nobody reads any more; the last one takes it."""
        last = self.trunks.pop()
        if last is not trunk:
            spans = [self.view(last, last.start, len(last.ids))]
            self.trunks[trunk.slot], last.slot = last, trunk.slot
            self.view(last, last.start, len(last.ids)).fill(spans)
        if self.trunks:
            self.block.fit(len(self.trunks), max(len(trunk) for trunk in self.trunks))

    def view(self, trunk: Trunk, start: int, end: int) -> Span:
        """Returns positions `start` to `end` of a sequence that lie in `trunk`."""
        return self.block.view(trunk.slot, start - trunk.start, end - trunk.start)

    def reading(self, stretches: Sequence[Stretch | None], device: torch.device) -> Reading | None:
        """Returns who reads what, given what each row reads here; None if nobody reads anything."""
        readers: list[list[int]] = [[] for _ in self.trunks]
        for row, stretch in enumerate(stretches):
            if stretch is not None:
                readers[stretch[0].slot].append(row)
        shape = len(self.trunks), max(len(rows) for rows in readers)
        if not shape[1]:
            return None
        rows = np.zeros(shape, dtype=np.int64)
        seen = np.full(shape, self.block.capacity, dtype=np.int64)
        place = np.zeros(len(stretches), dtype=np.int64)
        for slot, numbers in enumerate(readers):
            for at, row in enumerate(numbers):
                stretch = stretches[row]
                assert stretch is not None
                rows[slot, at], seen[slot, at] = row, stretch[1] - stretch[0].start
                place[row] = slot * shape[1] + at
        absent = np.array([stretch is None for stretch in stretches])
        starts = np.array([trunk.start for trunk in self.trunks])
        return Reading(
            block=self.block,
            starts=torch.from_numpy(starts).to(device),
            rows=torch.from_numpy(rows).to(device),
            seen=torch.from_numpy(seen).to(device),
            place=torch.from_numpy(place).to(device),
            absent=torch.from_numpy(absent).to(device),
            whole=bool((seen == self.block.capacity).all()),
        )
