"""The bytes of keys and values that a decode step reads at least: shared prompts and each suffix once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.engine.span import CacheShape
from turnpoint.models.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """What one layer reads for each token of its context."""

    token_bytes: int
    window: int | None  # it sees so many tokens; None: all


def layers_of(decoder: Decoder) -> list[LayerContext]:
    """Returns what the layers of `decoder` read."""
    shape = CacheShape.of(decoder)
    kinds: Sequence[str] = getattr(decoder.config, "layer_types", None) or ["full_attention"] * len(
        shape.layers
    )
    window: int | None = getattr(decoder.config, "sliding_window", None)
    return [
        LayerContext(
            token_bytes=layer.heads * (layer.key_dim + layer.value_dim) * shape.dtype.itemsize,
            window=window if kind == "sliding_attention" else None,
        )
        for layer, kind in zip(shape.layers, kinds, strict=True)
    ]


def context_bytes(
    layers: Sequence[LayerContext], *, prompts: int, prompt_tokens: int, sequences: int, suffix: float
) -> float:
    """Returns the bytes of a step whose sequences are `suffix` tokens beyond one of the prompts.

    >>> layers = [LayerContext(token_bytes=10, window=None), LayerContext(token_bytes=10, window=6)]
    >>> context_bytes(layers, prompts=2, prompt_tokens=8, sequences=4, suffix=5)
    580.0
    """
    return float(sum(it.token_bytes * _seen(it, prompts, prompt_tokens, sequences, suffix) for it in layers))


def _seen(layer: LayerContext, prompts: int, prompt_tokens: int, sequences: int, suffix: float) -> float:
    reach = float("inf") if layer.window is None else layer.window
    own = min(suffix, reach)
    return sequences * own + prompts * min(prompt_tokens, reach - own)
