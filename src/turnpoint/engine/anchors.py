"""What a drafter knows of its rows: anchors whose keys it has, and the chains of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.types import TokenIds, token_array


@dataclass(slots=True)
class Anchors:
    """The anchors of a row, and how many of them each slot has keys of."""

    ids: TokenIds = field(default_factory=lambda: token_array([]))  # that its anchors read at depth 1
    done: dict[int, int] = field(default_factory=dict[int, int])  # by depth with a slot: anchors with keys

    def first(self, depth: int) -> int:
        """Returns the first anchor whose keys some slot up to that of `depth` lacks."""
        return min(self.done.get(at, 0) for at in range(1, depth + 1))

    def finish(self, depth: int, anchors: int) -> None:
        """Notes that up to `depth`, slots hold all of the first `anchors` whose tokens are known."""
        for at in range(1, depth + 1):
            self.done[at] = max(self.done.get(at, 0), min(anchors, len(self.ids) + 1 - at))


class Chains:
    """What was drafted so far in a round."""

    def __init__(self, rows: Sequence[int], depths: Sequence[int]) -> None:
        self.rows, self.depths = np.array(rows), np.array(depths)
        self._drawn: list[Tensor] = []  # by depth, of the rows that go so deep

    def going(self, depth: int) -> npt.NDArray[np.int64]:
        """Returns which rows go so deep."""
        return (self.depths >= depth).nonzero()[0]

    def going_on(self, depth: int) -> npt.NDArray[np.bool_]:
        """Returns, of the rows that go to the depth before, whether they go to this one."""
        return self.depths[self.going(depth - 1)] >= depth

    def add(self, drawn: Tensor) -> None:
        """Adds the tokens of the next depth."""
        self._drawn.append(drawn)

    def newest(self, depth: int) -> Tensor:
        """Returns the last drafts of the rows that go to `depth`."""
        drawn = self._drawn[depth - 2]
        return drawn[torch.from_numpy(self.going_on(depth)).to(drawn.device)]

    def read(
        self, depth: int, texts: Sequence[TokenIds], firsts: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Returns what anchors from `firsts` on of the rows that go to `depth` read there, row by row.

        `texts` and `firsts` are of all rows; behind the texts are the drafts.
        """
        going, read = self.going(depth), list[npt.NDArray[np.int64]]()
        drafts = np.empty((len(going), depth - 1), dtype=np.int64)
        for at, drawn in enumerate(self._drawn[: depth - 1]):
            drafts[:, at] = drawn.cpu().numpy()[np.searchsorted(self.going(at + 1), going)]
        for row, own in zip(going, drafts, strict=True):
            read += [texts[row][firsts[row] + depth - 1 :].astype(np.int64), own]
        return np.concatenate(read)
