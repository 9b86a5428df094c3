"""Who attends to whom in one step of the engine: decoding rows first, then chunks of prefixes."""

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
    """B rows that decode one token each: what they attend to."""

    own: Rows  # row b holds the tokens from position shared[b] on
    positions: Tensor  # [B] of the tokens
    shared: Tensor  # [B] how many leading tokens they read from trunks
    trunks: Sequence[Reading]  # those trunks, by depth


class StepLayout(AttentionLayout):
    """The flat row of a step: a token for each of `decoding`, then the tokens of `chunks`.

    Keys and values are stored as the layers compute them. Masks are built once per step and window.
    """

    def __init__(self, *, decoding: DecodeRows, chunks: Sequence[SpanChunk]) -> None:
        self._rows = decoding.own
        self._positions = decoding.positions
        self._shared = decoding.shared
        self._index = torch.arange(len(decoding.positions), device=decoding.positions.device)
        self._trunks = [TrunkReader(reading, decoding.positions) for reading in decoding.trunks]
        self._chunks = chunks
        self._decode_masks: dict[tuple[int | None, int], Tensor] = {}
        self._chunk_masks: dict[tuple[int | None, int], Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the attention output, [H, T, D]."""
        outputs: list[Tensor] = []
        at = len(self._positions)
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
        """Returns [B, H, D]: one query per row, the query heads of one key head as its matrix."""
        batch, heads, kv_heads = len(self._positions), call.query.shape[0], call.key.shape[0]
        keys, values = self._rows.keys[call.layer], self._rows.values[call.layer]
        own = self._positions - self._shared
        keys[self._index, :, own] = call.key[:, :batch].transpose(0, 1)
        values[self._index, :, own] = call.value[:, :batch].transpose(0, 1)
        queries = call.query[:, :batch].transpose(0, 1) * call.scaling
        queries = queries.reshape(batch * kv_heads, heads // kv_heads, -1)
        output = own_attention(
            call,
            queries,
            keys[:batch].flatten(0, 1),
            values[:batch].flatten(0, 1),
            self._decode_mask(call),
            [trunk.attend(call, queries) for trunk in self._trunks],
        )
        return output.reshape(batch, heads, -1)

    def _decode_mask(self, call: AttentionCall) -> Tensor:
        """Returns [B * Hkv, 1, C] to be added to logits: 0 where seen, -inf elsewhere."""
        key = (call.window, call.key.shape[0])
        if key not in self._decode_masks:
            every = torch.arange(self._rows.capacity, device=self._positions.device)
            absolute = self._shared.unsqueeze(-1) + every
            seen = visible(self._positions.unsqueeze(-1), absolute, call.window)  # [B, 1, C]
            mask = torch.zeros(seen.shape, dtype=call.query.dtype, device=seen.device)
            mask.masked_fill_(~seen, -torch.inf)
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
