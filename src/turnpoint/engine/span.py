"""Keys, values and last hidden states of consecutive tokens: the unit that is cached and copied.

The last hidden state is kept beside keys and values. It costs a few percent of their memory, and it lets a
path that is cached whole be continued or scored without running the network at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnpoint.models.attention import AttentionCall, AttentionLayout, CausalLayout
from turnpoint.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one layer hands to attention for every token."""

    heads: int  # key and value heads
    key_dim: int
    value_dim: int


class _ShapeProbe(AttentionLayout):
    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}
        self._causal = CausalLayout()

    def attend(self, call: AttentionCall) -> Tensor:
        self.layers[call.layer] = LayerShape(
            heads=call.key.shape[0], key_dim=call.key.shape[-1], value_dim=call.value.shape[-1]
        )
        return self._causal.attend(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """How much one token takes, and where."""

    layers: tuple[LayerShape, ...]
    hidden_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def attended_bytes(self) -> int:
        """What a layer reads of one token in attention, on average."""
        numbers = sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in self.layers)
        return numbers * self.dtype.itemsize // len(self.layers)

    @property
    def token_bytes(self) -> int:
        """What one cached token takes: keys, values and the last hidden state."""
        return self.attended_bytes * len(self.layers) + self.hidden_dim * self.dtype.itemsize

    @staticmethod
    @torch.no_grad()
    def of(decoder: Decoder) -> CacheShape:
        """Returns what `decoder` needs, seen by running it on one token."""
        probe = _ShapeProbe()
        token = torch.zeros(1, dtype=torch.long, device=decoder.device)
        hidden = decoder.hidden(token, token, probe)
        return CacheShape(
            layers=tuple(probe.layers[layer] for layer in range(decoder.num_layers)),
            hidden_dim=hidden.shape[-1],
            dtype=decoder.dtype,
            device=decoder.device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """n consecutive tokens of one sequence."""

    keys: list[Tensor]  # per layer [Hkv, n, D]
    values: list[Tensor]  # per layer [Hkv, n, D]
    hidden: Tensor  # [n, M]

    def __len__(self) -> int:
        return self.hidden.shape[0]

    def part(self, start: int, end: int) -> Span:
        """Returns tokens `start` to `end` as a view."""
        return Span(
            keys=[key[:, start:end] for key in self.keys],
            values=[value[:, start:end] for value in self.values],
            hidden=self.hidden[start:end],
        )

    def clone(self) -> Span:
        """Returns a copy that owns its memory."""
        return Span(
            keys=[key.clone(memory_format=torch.contiguous_format) for key in self.keys],
            values=[value.clone(memory_format=torch.contiguous_format) for value in self.values],
            hidden=self.hidden.clone(),
        )

    def fill(self, sources: Sequence[Span]) -> None:
        """Copies consecutive spans into this one, from its first token on."""
        at = 0
        for source in sources:
            target = self.part(at, at + len(source))
            for to, of in zip(target.keys, source.keys, strict=True):
                to.copy_(of)
            for to, of in zip(target.values, source.values, strict=True):
                to.copy_(of)
            target.hidden.copy_(source.hidden)
            at += len(source)


def cut(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Returns tokens `start` to `end` of consecutive spans as views."""
    parts: list[Span] = []
    at = 0
    for span in spans:
        first, last = max(start - at, 0), min(end - at, len(span))
        if first < last:
            parts.append(span.part(first, last))
        at += len(span)
    return parts


def empty_span(shape: CacheShape, length: int) -> Span:
    """Returns a span of `length` tokens still to be written."""

    def buffer(*sizes: int) -> Tensor:
        return torch.empty(*sizes, dtype=shape.dtype, device=shape.device)

    return Span(
        keys=[buffer(layer.heads, length, layer.key_dim) for layer in shape.layers],
        values=[buffer(layer.heads, length, layer.value_dim) for layer in shape.layers],
        hidden=buffer(length, shape.hidden_dim),
    )
