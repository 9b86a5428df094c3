"""Keys and values of the sequences that decode: one row each, rows in use always the first ones.

A decode step attends over the first rows at their full capacity, which is one contiguous block: nothing is
gathered, concatenated or sliced, so the matrix products read it in place. In return the capacity follows
the longest sequence closely, up and down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnpoint.engine.span import CacheShape, Span

_GRAIN = 32  # capacities are multiples of it


class Rows:
    """Storage for decoding sequences; memory is rows in use x the longest sequence, up to a small factor."""

    def __init__(self, shape: CacheShape, *, grows: bool = True) -> None:
        """`grows`: whether rows will become longer; if not, the capacity is that of the longest."""
        self._shape = shape
        self._grows = grows
        self.clear()

    def clear(self) -> None:
        """Frees everything."""
        self._rows = self.capacity = 0
        self.keys: list[Tensor] = []  # per layer [rows, Hkv, capacity, D]
        self.values: list[Tensor] = []  # per layer [rows, Hkv, capacity, D]
        self.hidden = self._zeros(0, 0, self._shape.hidden_dim)  # [rows, capacity, M]

    @property
    def tokens(self) -> int:
        """For how many tokens there is room."""
        return self._rows * self.capacity

    def fit(self, rows: int, length: int) -> None:
        """Makes the storage right for `rows` sequences of at most `length` tokens, keeping what they hold.

        Grows by an eighth, so that copying is rare, and shrinks when half or more would stand empty, so that
        a long sequence that has ended costs the others nothing.
        """
        enough = rows <= self._rows and length <= self.capacity
        if enough and self.capacity <= max(2 * length, 2 * _GRAIN):
            return
        kept_rows, kept = min(rows, self._rows), min(length, self.capacity)
        self._rows = max(self._rows, 1 << (rows - 1).bit_length())
        self.capacity = -(-(length + length // 8) // _GRAIN) * _GRAIN if self._grows else length
        old_keys, old_values, old_hidden = self.keys, self.values, self.hidden
        self.keys, self.values = [], []
        for index, layer in enumerate(self._shape.layers):
            self.keys.append(self._zeros(self._rows, layer.heads, self.capacity, layer.key_dim))
            self.values.append(self._zeros(self._rows, layer.heads, self.capacity, layer.value_dim))
            if kept_rows:
                self.keys[index][:kept_rows, :, :kept] = old_keys[index][:kept_rows, :, :kept]
                self.values[index][:kept_rows, :, :kept] = old_values[index][:kept_rows, :, :kept]
        self.hidden = self._zeros(self._rows, self.capacity, self._shape.hidden_dim)
        self.hidden[:kept_rows, :kept] = old_hidden[:kept_rows, :kept]

    def _zeros(self, *sizes: int) -> Tensor:
        # zeros, not empty: a masked position has probability 0, and 0 * NaN would still be NaN
        return torch.zeros(*sizes, dtype=self._shape.dtype, device=self._shape.device)

    def view(self, row: int, start: int, end: int) -> Span:
        """Returns tokens `start` to `end` of `row`, to be read or filled."""
        return Span(
            keys=[key[row, :, start:end] for key in self.keys],
            values=[value[row, :, start:end] for value in self.values],
            hidden=self.hidden[row, start:end],
        )
