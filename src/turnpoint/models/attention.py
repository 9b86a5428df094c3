"""One attention function for transformers' model code; who attends to whom is an `AttentionLayout`.

transformers supplies every architecture; it calls the function registered here in each layer and hands it
queries, keys and values of one flat row of T tokens. A layout knows what the row is: the engine's mixture
of decoding and prefilling sequences over cached keys, or the trainer's packed trees. No mask of ours passes
through transformers, so no padding, no [T, T] mask of a whole batch, and no cache class either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

IMPLEMENTATION = "turnpoint"  # the name under which transformers knows the function


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What one layer asks: H query heads share Hkv key heads; T tokens in one flat row."""

    layer: int
    query: Tensor  # [H, T, D]
    key: Tensor  # [Hkv, T, D]
    value: Tensor  # [Hkv, T, Dv]; Dv = D but in latent attention
    scaling: float
    window: int | None  # a token sees the `window` tokens up to and including itself
    softcap: float | None  # logits -> softcap * tanh(logits / softcap)
    sinks: Tensor | None  # [H] logits that take probability and give no value


class AttentionLayout(ABC):
    """Says which tokens of a flat row, and of a cache, each token attends to."""

    @abstractmethod
    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the attention output, [H, T, Dv]."""


class CausalLayout(AttentionLayout):
    """One sequence without a cache: the reference that every other layout must equal."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns causal (and windowed) attention, [H, T, Dv]."""
        index = torch.arange(call.query.shape[1], device=call.query.device)
        return masked_attention(call, call.key, call.value, visible(index, index, call.window))


def visible(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Returns which keys each query of the same sequence sees, [.., Q, K] from [.., Q] and [.., K]."""
    distance = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def masked_attention(call: AttentionCall, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Returns softmax(q k' * scaling) v over the keys that `mask` [Q, K] shows, [H, Q, Dv].

    `key` [Hkv, K, D] and `value` [Hkv, K, Dv] may include cached ones. Written out, so that softcap and
    sinks are honoured and so that it has a backward that is fast on CPUs; a query that sees no key is a
    programming error.
    """
    heads, length, dim = call.query.shape
    kv_heads, keys, _ = key.shape
    # heads that share keys are more queries of one product, so that keys are neither copied nor expanded
    query = (call.query * call.scaling).reshape(kv_heads, -1, dim)
    logits = torch.bmm(query, key.transpose(-1, -2)).view(kv_heads, -1, length, keys)
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits.float() / call.softcap)
    logits = logits.masked_fill(~mask, -torch.inf)
    if call.sinks is not None:
        sinks = call.sinks.reshape(kv_heads, -1, 1, 1).expand(-1, -1, length, 1)
        logits = torch.cat([logits, sinks.to(logits.dtype)], dim=-1)
    probs = torch.softmax(logits, dim=-1, dtype=torch.float32)[..., :keys].to(value.dtype)
    output = torch.bmm(probs.reshape(kv_heads, -1, keys), value)
    return output.reshape(heads, length, value.shape[-1])


def _attention(
    module: nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, Hkv, T, D]
    value: Tensor,  # [1, Hkv, T, Dv]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    *,
    layout: AttentionLayout,
    **_: Any,  # what other implementations take
) -> tuple[Tensor, None]:
    call = AttentionCall(
        layer=module.layer_idx,  # type: ignore[arg-type]
        query=query[0],
        key=key[0],
        value=value[0],
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return layout.attend(call).transpose(0, 1).unsqueeze(0), None


def register() -> None:
    """Makes the function known to transformers under `IMPLEMENTATION`; safe to call again."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)  # type: ignore[no-untyped-call]
