"""Keys and values of the sequences that decode: one row each, rows in use always the first ones.

A decode step attends over a view of the first rows up to the longest length: nothing is gathered or
concatenated. Keys are stored transposed, [rows, Hkv, D, capacity], because the product with one query per
sequence is then an ordinary matrix product, on CPUs in bfloat16 about half the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnpoint.engine.span import CacheShape, Span

_FIRST_ROWS = 8
_FIRST_CAPACITY = 128


class Rows:
    """Growing storage for decoding sequences; memory is rows in use x the longest sequence.

    Both sizes double when they no longer suffice and shrink only in `clear`.
    """

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self.clear()

    def clear(self) -> None:
        """Frees everything."""
        self._size = (0, 0)
        self.keys: list[Tensor] = []  # per layer [rows, Hkv, D, capacity]
        self.values: list[Tensor] = []  # per layer [rows, Hkv, capacity, D]
        self.hidden = torch.empty(0, 0, self._shape.hidden_dim)  # [rows, capacity, M]

    def reserve(self, rows: int, length: int) -> None:
        """Makes room for `rows` sequences of `length` tokens, keeping what is there."""
        old_rows, old_capacity = self._size
        if rows <= old_rows and length <= old_capacity:
            return
        new_rows = _doubled(old_rows or _FIRST_ROWS, rows)
        capacity = _doubled(old_capacity or _FIRST_CAPACITY, length)
        old_keys, old_values = iter(self.keys), iter(self.values)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for layer in self._shape.layers:
            keys.append(self._zeros(new_rows, layer.heads, layer.key_dim, capacity))
            values.append(self._zeros(new_rows, layer.heads, capacity, layer.value_dim))
            if old_rows:
                keys[-1][:old_rows, :, :, :old_capacity] = next(old_keys)
                values[-1][:old_rows, :, :old_capacity] = next(old_values)
        hidden = self._zeros(new_rows, capacity, self._shape.hidden_dim)
        if old_rows:
            hidden[:old_rows, :old_capacity] = self.hidden
        self.keys, self.values, self.hidden, self._size = keys, values, hidden, (new_rows, capacity)

    def _zeros(self, *sizes: int) -> Tensor:
        # zeros, not empty: a masked position has probability 0, and 0 * NaN would still be NaN
        return torch.zeros(*sizes, dtype=self._shape.dtype, device=self._shape.device)

    def fill(self, row: int, start: int, span: Span) -> None:
        """Copies `span` to the tokens of `row` from `start` on."""
        end = start + len(span)
        for to, of in zip(self.keys, span.keys, strict=True):
            to[row, :, :, start:end] = of.transpose(-1, -2)
        for to, of in zip(self.values, span.values, strict=True):
            to[row, :, start:end] = of
        self.hidden[row, start:end] = span.hidden

    def view(self, row: int, start: int, end: int) -> Span:
        """Returns tokens `start` to `end` of `row`, a view."""
        return Span(
            keys=[key[row, :, :, start:end].transpose(-1, -2) for key in self.keys],
            values=[value[row, :, start:end] for value in self.values],
            hidden=self.hidden[row, start:end],
        )

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of row `source` over row `target`."""
        self.fill(target, 0, self.view(source, 0, length))


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
