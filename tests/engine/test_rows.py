"""Rows keep what they hold while the storage follows the longest sequence up and down."""

from __future__ import annotations

import torch

from turnpoint.engine.rows import Rows
from turnpoint.engine.span import CacheShape, LayerShape, Span

SHAPE = CacheShape(
    layers=(LayerShape(heads=2, key_dim=3, value_dim=4), LayerShape(heads=1, key_dim=2, value_dim=2)),
    hidden_dim=5,
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
)


def write(rows: Rows, row: int, length: int) -> None:
    view = rows.view(row, 0, length)
    for index, tensor in enumerate([*view.keys, *view.values, view.hidden]):
        tensor.fill_(row * 10 + index)


def holds(span: Span, row: int) -> bool:
    tensors = [*span.keys, *span.values, span.hidden]
    return all(bool((tensor == row * 10 + index).all()) for index, tensor in enumerate(tensors))


def test_growth_and_shrinkage_keep_the_rows() -> None:
    rows = Rows(SHAPE)
    rows.fit(2, 20)
    write(rows, 0, 20)
    write(rows, 1, 7)
    for count, length in [(3, 20), (3, 1000), (40, 1000), (2, 20)]:
        rows.fit(count, length)
        assert rows.capacity >= length
        assert len(rows.hidden) >= count
        assert holds(rows.view(0, 0, 20), 0)
        assert holds(rows.view(1, 0, 7), 1)
    assert rows.capacity < 64  # the long sequence is gone, and what it took with it


def test_a_growing_sequence_is_rarely_copied() -> None:
    rows = Rows(SHAPE)
    storages: set[int] = set()
    for length in range(1, 2001):
        rows.fit(4, length)
        storages.add(rows.capacity)
        assert rows.capacity <= max(64, 1.25 * length + 32)
    assert len(storages) < 30


def test_storage_starts_at_zero() -> None:
    rows = Rows(SHAPE)
    rows.fit(8, 50)
    assert all(bool((tensor == 0).all()) for tensor in [*rows.keys, *rows.values, rows.hidden])
    rows.clear()
    assert rows.capacity == 0
