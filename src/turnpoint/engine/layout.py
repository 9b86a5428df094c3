"""Who attends to whom in one step of the engine: decoding rows first, then chunks of prefixes.

A decoding row has one token in a step, or several when drafted ones are verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from turnpoint.engine.decode import TrunkReader, own_attention
from turnpoint.engine.rows import Rows
from turnpoint.engine.span import Span
from turnpoint.engine.trunks import Reading
from turnpoint.models.attention import AttentionCall, AttentionLayout, masked_attention, visible


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanChunk:
    """Tokens `start` to `end` of a prefix whose keys and values go to `span`."""

    span: Span
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """B rows whose newest tokens go through the network, T in all, row by row: what they attend to."""

    own: Rows  # row b holds the tokens from position shared[b] on
    shared: Tensor  # [B] how many leading tokens they read from trunks
    trunks: Sequence[Reading]  # those trunks, by depth
    positions: Tensor  # [T] of the tokens
    row: Tensor  # [T] whose they are
    grid: Grid | None = None  # None: one token each, T = B
    numbers: Tensor | None = None  # [B] of the rows in `own`; None: the first B
    unseen: Tensor | None = None  # [B, C] places of theirs in `own` that hold nothing; None: none

    @property
    def place(self) -> Tensor:
        """[T] where in its own row each token lies."""
        return self.positions - self.shared[self.row]

    @property
    def stored(self) -> Tensor:
        """[T] in which row of `own` each token lies."""
        return self.row if self.numbers is None else self.numbers[self.row]

    def held(self, storage: Tensor) -> Tensor:
        """Returns the B rows of keys or values as [B * Hkv, C, D]."""
        rows = len(self.shared)
        return (storage[:rows] if self.numbers is None else storage[self.numbers]).flatten(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """T tokens of B rows as [B, K], as many columns as the row with most tokens needs."""

    position: Tensor  # [B, K]
    source: Tensor  # [B * K] which of the T tokens stands there, any where there is none
    place: Tensor  # [T] where in the flat grid each token stands

    @staticmethod
    def of(first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Grid]:
        """Returns positions [T], rows [T] and the grid of `counts` [B] tokens from `first` [B] on."""
        width, device = int(counts.max()), first.device
        columns = torch.arange(width, device=device)
        there = columns < counts.unsqueeze(1)
        place = there.flatten().nonzero().squeeze(1)
        row = place // width
        source = (there.flatten().cumsum(0) - 1).clamp_(min=0)
        position = first.unsqueeze(1) + columns
        return position.flatten()[place], row, Grid(position=position, source=source, place=place)


class StepLayout(AttentionLayout):
    """The flat row of a step: the tokens of `decoding`, then the tokens of `chunks`.

    Keys and values are stored as the layers compute them. Masks are built once per step and window.
    """

    def __init__(self, *, decoding: DecodeRows, chunks: Sequence[SpanChunk]) -> None:
        self._rows = decoding.own
        self._decoding = decoding
        self._stored, self._place = decoding.stored, decoding.place
        self._tokens = len(decoding.positions)
        grid = decoding.grid
        self._positions = decoding.positions.unsqueeze(1) if grid is None else grid.position  # [B, K]
        self._trunks = [TrunkReader(reading, self._positions) for reading in decoding.trunks]
        self._chunks = chunks
        self._decode_masks: dict[tuple[int | None, int], Tensor] = {}
        self._chunk_masks: dict[tuple[int | None, int], Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the attention output, [H, T, D]."""
        outputs: list[Tensor] = []
        at = self._tokens
        if at:
            outputs.append(self._decode(call))
        for number, chunk in enumerate(self._chunks):
            end = at + chunk.end - chunk.start
            outputs.append(self._prefill(_part(call, at, end), number, chunk))
            at = end
        # token-major, so that turning the result into [T, H * D] costs nothing
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined.transpose(0, 1)

    def _decode(self, call: AttentionCall) -> Tensor:
        """Returns [T, H, D]: the queries that share a row's key head are one matrix."""
        batch, heads, kv_heads = len(self._positions), call.query.shape[0], call.key.shape[0]
        keys, values = self._rows.keys[call.layer], self._rows.values[call.layer]
        keys[self._stored, :, self._place] = call.key[:, : self._tokens].transpose(0, 1)
        values[self._stored, :, self._place] = call.value[:, : self._tokens].transpose(0, 1)
        queries = call.query[:, : self._tokens].transpose(0, 1) * call.scaling
        grid = self._decoding.grid
        if grid is not None:
            columns = queries[grid.source].view(batch, -1, kv_heads, heads // kv_heads, queries.shape[-1])
            queries = columns.transpose(1, 2)
        queries = queries.reshape(batch * kv_heads, -1, queries.shape[-1])
        output = own_attention(
            call,
            queries,
            self._decoding.held(keys),
            self._decoding.held(values),
            self._decode_mask(call),
            [trunk.attend(call, queries) for trunk in self._trunks],
        )
        if grid is None:
            return output.reshape(batch, heads, -1)
        columns = output.view(batch, kv_heads, -1, heads // kv_heads, output.shape[-1]).transpose(1, 2)
        return columns.reshape(-1, heads, output.shape[-1])[grid.place]

    def _decode_mask(self, call: AttentionCall) -> Tensor:
        """Returns [B * Hkv, K * G or 1, C] to be added to logits: 0 where seen, -inf elsewhere."""
        key = (call.window, call.key.shape[0])
        if key not in self._decode_masks:
            every = torch.arange(self._rows.capacity, device=self._positions.device)
            absolute = self._decoding.shared.unsqueeze(-1) + every
            seen = visible(self._positions, absolute, call.window)  # [B, K, C]
            if self._decoding.unseen is not None:
                seen &= ~self._decoding.unseen.unsqueeze(1)
            mask = torch.zeros(seen.shape, dtype=call.query.dtype, device=seen.device)
            mask.masked_fill_(~seen, -torch.inf)
            if self._decoding.grid is not None:
                mask = mask.repeat_interleave(call.query.shape[0] // call.key.shape[0], dim=1)
            self._decode_masks[key] = mask.repeat_interleave(call.key.shape[0], dim=0)
        return self._decode_masks[key]

    def _prefill(self, call: AttentionCall, number: int, chunk: SpanChunk) -> Tensor:
        """Returns [C, H, D] for a chunk that attends over its prefix so far."""
        keys, values = chunk.span.keys[call.layer], chunk.span.values[call.layer]
        keys[:, chunk.start : chunk.end] = call.key
        values[:, chunk.start : chunk.end] = call.value
        mask = self._chunk_mask(number, chunk, call.window)
        return chunk_attention(call, keys[:, : chunk.end], values[:, : chunk.end], mask).transpose(0, 1)

    def _chunk_mask(self, number: int, chunk: SpanChunk, window: int | None) -> Tensor:
        key = (window, number)
        if key not in self._chunk_masks:
            every = torch.arange(chunk.end, device=self._positions.device)
            self._chunk_masks[key] = visible(every[chunk.start :], every, window)
        return self._chunk_masks[key]


def _part(call: AttentionCall, start: int, end: int) -> AttentionCall:
    return AttentionCall(
        layer=call.layer,
        query=call.query[:, start:end],
        key=call.key[:, start:end],
        value=call.value[:, start:end],
        scaling=call.scaling,
        window=call.window,
        softcap=call.softcap,
        sinks=call.sinks,
    )


def chunk_attention(call: AttentionCall, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Returns [H, C, D] of C queries over `key`, `value` [Hkv, L, D] under `mask` [C, L]."""
    if call.softcap is not None or call.sinks is not None:
        return masked_attention(call, key, value, mask)
    kv_heads, group = key.shape[0], call.query.shape[0] // key.shape[0]
    output = functional.scaled_dot_product_attention(
        call.query.reshape(kv_heads, group, *call.query.shape[1:]),
        key.unsqueeze(1).expand(-1, group, -1, -1),
        value.unsqueeze(1).expand(-1, group, -1, -1),
        attn_mask=mask,
        scale=call.scaling,
    )
    return output.flatten(0, 1)
