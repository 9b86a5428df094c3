"""What the layer of a draft head attends to: over packed sequences in training, over a cache in decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.models.attention import AttentionCall, AttentionLayout, masked_attention, visible


class PackedLayout(AttentionLayout):
    """Packed sequences without a cache, each causal; keeps what it was given for the chains that follow."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.key = torch.empty(0)
        self.value = torch.empty(0)

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns causal (and windowed) attention within each sequence, [H, T, Dv]."""
        self.key, self.value = call.key, call.value
        return _by_sequence(call, self, [])


class ChainLayout(AttentionLayout):
    """A layer that is used again, over packed sequences: the keys of its first use, and the chain's own.

    `first` is its first use; `ahead` says how many tokens further on the chain is; `before` are the uses in
    between. A query at anchor t sees the first use's keys up to t and, of each later use, the key at t
    alone: what a decoder with one cache sees, that drafts a chain from t.
    """

    def __init__(self, first: PackedLayout, before: Sequence[ChainLayout], *, ahead: int) -> None:
        self.first = first
        self.before = list(before)
        self.ahead = ahead
        self.key = torch.empty(0)
        self.value = torch.empty(0)

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the attention output, [H, T, Dv]."""
        self.key, self.value = call.key, call.value
        return _by_sequence(call, self.first, [*self.before, self])


def _by_sequence(call: AttentionCall, first: PackedLayout, chain: Sequence[ChainLayout]) -> Tensor:
    ahead = chain[-1].ahead if chain else 0
    outputs: list[Tensor] = []
    parts = zip(
        *(torch.split(it, first.lengths, dim=1) for it in (call.query, first.key, first.value)),
        *(torch.split(it, first.lengths, dim=1) for use in chain for it in (use.key, use.value)),
        strict=True,
    )
    for query, key, value, *own in parts:
        index = torch.arange(query.shape[1], device=query.device)
        seen = visible(index, index, None)
        if call.window is not None:
            seen &= visible(index + ahead, index, call.window)
        within = [call.window is None or ahead - use.ahead < call.window for use in chain]
        keys = [it for it, near in zip(own[0::2], within, strict=True) if near]
        values = [it for it, near in zip(own[1::2], within, strict=True) if near]
        outputs.append(chain_attention(call, query, key, value, seen, keys, values))
    return torch.cat(outputs, dim=1)


def chain_attention(
    call: AttentionCall,
    query: Float[Tensor, "H n D"],
    key: Float[Tensor, "Hkv n D"],
    value: Float[Tensor, "Hkv n Dv"],
    seen: Bool[Tensor, "n n"],
    own_keys: Sequence[Tensor],
    own_values: Sequence[Tensor],
) -> Float[Tensor, "H n Dv"]:
    """Returns attention over the keys that `seen` shows, and over row t of each of `own_keys` for query t.

    The latter, [Hkv, n, D] each, cost a number per query and not a row of scores.
    """
    heads, length, dim = query.shape
    kv_heads, own = key.shape[0], len(own_keys)
    # heads that share keys are more queries of one product
    grouped = (query * call.scaling).reshape(kv_heads, -1, dim)
    scores = torch.bmm(grouped, key.transpose(-1, -2)).view(kv_heads, -1, length, length)
    grouped = grouped.view(kv_heads, -1, length, dim)
    logits = torch.cat([scores, *((grouped * it.unsqueeze(1)).sum(-1, keepdim=True) for it in own_keys)], -1)
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits.float() / call.softcap)
    logits = logits.masked_fill(~torch.cat([seen, seen.new_ones(length, own)], dim=-1), -torch.inf)
    if call.sinks is not None:
        sinks = call.sinks.reshape(kv_heads, -1, 1, 1).expand(-1, -1, length, 1)
        logits = torch.cat([logits, sinks.to(logits.dtype)], dim=-1)
    probs = torch.softmax(logits, dim=-1, dtype=torch.float32)[..., : length + own].to(value.dtype)
    output = torch.bmm(probs[..., :length].reshape(kv_heads, -1, length), value)
    output = output.view(kv_heads, -1, length, value.shape[-1])
    for number, it in enumerate(own_values):
        output = output + probs[..., length + number, None] * it.unsqueeze(1)
    return output.reshape(heads, length, value.shape[-1])


@dataclass(slots=True, eq=False)
class _Slot:
    """The keys of a layer's first use, by anchor, then those of the chain in flight."""

    anchors: int = 0
    keys: Tensor | None = None  # [Hkv, K, D]
    values: Tensor | None = None  # [Hkv, K, Dv]
    positions: Tensor | None = None  # [K]


class DraftCache:
    """Keys and values of one sequence's drafts: `slots` of them, as the heads' layout asks for.

    A slot holds the keys of anchors 0, 1, .. and, behind them, those of the chain that is being drafted.
    Writing at an anchor forgets everything from there on: so the keys of drafts that were accepted give way
    to those computed from the backbone's true states, and those of rejected ones are gone.
    """

    def __init__(self, slots: int) -> None:
        self._slots = [_Slot() for _ in range(slots)]

    def anchors(self, slot: int) -> int:
        """Returns how many anchors of `slot` were written."""
        return self._slots[slot].anchors

    def write(self, slot: int, *, anchor: int, positions: Int[Tensor, " n"]) -> AttentionLayout:
        """Returns the layout of a step over the anchors from `anchor` on, at `positions`.

        Raises ValueError when anchors before it are missing.
        """
        if not 0 <= anchor <= self._slots[slot].anchors:
            raise ValueError(
                f"anchor {anchor} of a cache that holds {self.anchors(slot)}: none may be left out"
            )
        return _CachedLayout(self._slots[slot], kept=anchor, positions=positions)

    def extend(self, slot: int, *, positions: Int[Tensor, " n"]) -> AttentionLayout:
        """Returns the layout of a step that goes on with the chain at the last anchor, at `positions` [1]."""
        return _CachedLayout(self._slots[slot], kept=None, positions=positions)


class _CachedLayout(AttentionLayout):
    """`kept`: how many anchors stay, the new keys being the next ones; None: all, and a chain goes on."""

    def __init__(self, slot: _Slot, *, kept: int | None, positions: Tensor) -> None:
        self._slot, self._kept, self._positions = slot, kept, positions

    def attend(self, call: AttentionCall) -> Tensor:
        """Stores keys and values; returns the attention output, [H, n, Dv]."""
        slot = self._slot
        slot.keys = self._joined(slot.keys, call.key)
        slot.values = self._joined(slot.values, call.value)
        slot.positions = self._joined(slot.positions, self._positions, dim=0)
        if self._kept is not None:
            slot.anchors = self._kept + len(self._positions)
        seen = visible(self._positions, slot.positions, call.window)
        return masked_attention(call, slot.keys, slot.values, seen)

    def _joined(self, before: Tensor | None, new: Tensor, dim: int = 1) -> Tensor:
        if before is None:
            return new
        kept = before if self._kept is None else before.narrow(dim, 0, self._kept)
        return torch.cat([kept, new], dim=dim)
