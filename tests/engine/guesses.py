"""Drafters that guess by a law of their own, without any network's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.engine.serve import law
from turnpoint.models.decoder import Decoder
from turnpoint.types import TokenIds


class Guesses:
    """Drafts by the law of `decoder` on the tokens it was told of, computed anew each time.

    It refuses to be told anything twice, or to miss anything.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._laws: dict[tuple[int, ...], Tensor] = {}
        self.texts: dict[int, list[int]] = {}

    def propose(
        self,
        *,
        rows: Sequence[int],
        starts: Sequence[int],
        hidden: Sequence[Tensor],
        token_ids: Sequence[TokenIds],
        depths: Sequence[int],
        head: Callable[[Tensor], Tensor],
        draw: Callable[[Tensor], Tensor],
    ) -> None:
        """As `Drafter.propose`."""
        for row, start, states, ids in zip(rows, starts, hidden, token_ids, strict=True):
            if start == 0:
                self.texts[row] = []
            assert start == len(self.texts[row]), f"row {row} starts at {start}"
            assert len(states) == len(ids) > 0
            self.texts[row] += [int(token) for token in ids]
        chains = {row: list(self.texts[row]) for row in rows}
        for depth in range(max(depths)):
            deep = [row for row, most in zip(rows, depths, strict=True) if most > depth]
            drawn = draw(torch.stack([self._law(tuple(chains[row])) for row in deep]))
            for row, token in zip(deep, drawn, strict=True):
                chains[row].append(int(token))

    def _law(self, chain: tuple[int, ...]) -> Tensor:
        if chain not in self._laws:
            self._laws[chain] = law(self._decoder, chain)[-1]
        return self._laws[chain]

    def move(self, row: int, to: int) -> None:
        """As `Drafter.move`."""
        self.texts[to] = self.texts.pop(row)

    def clear(self) -> None:
        """As `Drafter.clear`."""
        self.texts.clear()
