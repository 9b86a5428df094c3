"""Less memory for more arithmetic: what happens inside a layer is computed again when backward needs it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import nn
from torch.utils import checkpoint

from turnpoint.errors import ModelError
from turnpoint.models.decoder import Decoder


def recomputable(decoder: Decoder) -> list[nn.Module]:
    """Returns the layers that transformers knows how to compute again; raises ModelError without any."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers: list[nn.Module] = [
        layer for layer in decoder.backbone.modules() if isinstance(layer, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ModelError(
            f"{type(decoder.model).__name__} has no layers that can be computed again; set "
            f"training.recompute=false"
        )
    return layers


@contextmanager
def recomputing(layers: Sequence[nn.Module]) -> Generator[None]:
    """While it lasts, forward keeps the input of each of `layers`, and backward computes the rest again.

    The gradient is the same: dropout is off, so both passes compute the same numbers. transformers' own
    switch works in training mode only, which turnpoint never enters, since it would turn dropout on.
    """
    own = {layer: vars(layer).get("forward") for layer in layers}  # hooks of others may have replaced it
    again = cast("Callable[..., Any]", checkpoint.checkpoint)
    for layer in layers:
        layer.forward = partial(again, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer, forward in own.items():
            if forward is None:
                del cast(Any, layer).forward
            else:
                layer.forward = forward
