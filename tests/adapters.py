"""Tiny models with adapters, trained or fresh, and the plain models that they must equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tiny import tiny_model
from turnpoint.models.adapter import Adapter, add_adapter
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder

RANK, ALPHA = 4, 6.0
ROW = (torch.arange(20, 44), torch.arange(24))


def adapted(
    architecture: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any
) -> tuple[Decoder, Adapter]:
    """Returns a tiny model with a new adapter."""
    model = tiny_model(architecture).to(dtype)
    given: dict[str, Any] = {"rank": RANK, "alpha": ALPHA, "seed": seed, **options}
    adapter = add_adapter(model, **given)
    return Decoder(model, vocab_size=model.config.vocab_size), adapter


def plain(architecture: str = "llama", *, dtype: torch.dtype = torch.float32) -> Decoder:
    """Returns the model that `adapted` adapts."""
    model = tiny_model(architecture).to(dtype)
    return Decoder(model, vocab_size=model.config.vocab_size)


def trained_tensors(decoder: Decoder) -> dict[str, Tensor]:
    """Returns what requires a gradient, by name."""
    return {name: it for name, it in decoder.model.named_parameters() if it.requires_grad}


def frozen_copies(decoder: Decoder) -> dict[str, Tensor]:
    """Returns copies of the base's weights, by name."""
    weights = decoder.model.named_parameters()
    return {name: it.detach().clone() for name, it in weights if not it.requires_grad}


@torch.no_grad()
def disturb(decoder: Decoder, *, seed: int = 1) -> Decoder:
    """Moves every trained tensor far enough to change the law; returns the decoder."""
    generator = torch.Generator().manual_seed(seed)
    for weight in trained_tensors(decoder).values():
        weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return decoder


def merge_by_hand(decoder: Decoder, target: Decoder) -> Decoder:
    """Gives `target` the weights W + (alpha / rank) B A of `decoder`, differentiable in A and B."""
    for name, a in trained_tensors(decoder).items():
        path, found, _ = name.partition(".lora_A.")
        if not found:
            continue
        b = decoder.model.get_parameter(name.replace("lora_A", "lora_B"))
        layer = target.model.get_submodule(path)
        weight = layer.weight.detach()
        added = ALPHA / RANK * (b.float() @ a.float())
        if weight.shape != added.shape or type(layer).__name__ == "Conv1D":  # GPT-2 stores [in, out]
            added = added.T
        del layer.weight
        layer.weight = (weight.float() + added).to(weight.dtype)
    return target


def logits_of(decoder: Decoder) -> Tensor:
    """Returns the logits of one fixed row."""
    return decoder.logits(decoder.hidden(*ROW, CausalLayout()))
