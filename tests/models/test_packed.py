"""Weights in the processor's order change no law, follow the weights they came from, and are counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.tiny import ARCHITECTURES, tiny_decoder
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder
from turnpoint.models.packed import packed, packed_bytes


def logits(decoder: Decoder, length: int = 24) -> torch.Tensor:
    ids = torch.randint(8, 100, (length,), generator=torch.Generator().manual_seed(0))
    return decoder.logits(decoder.hidden(ids, torch.arange(length), CausalLayout()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_the_law_is_the_same(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    torch.testing.assert_close(logits(packed(decoder)), logits(decoder), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_changed_weights_are_packed_anew() -> None:
    decoder = tiny_decoder()
    twin = packed(decoder)
    before = logits(twin)
    for weight in decoder.model.parameters():
        weight.mul_(1.1)
    torch.testing.assert_close(logits(twin), logits(decoder), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits(twin), before)


@torch.no_grad()
def test_layers_with_the_same_input_are_one_product() -> None:
    decoder = tiny_decoder("llama")
    products: set[int] = set()
    for module in packed(decoder).backbone.modules():
        if type(module).__name__ == "_Part":
            products.add(id(module._product))
    linear = sum(type(module) is nn.Linear for module in decoder.backbone.modules())
    layers = linear // 7  # q k v o gate up down
    assert linear == 7 * layers > 0
    assert len(products) == 4 * layers  # q k v, o, gate up, down


def test_the_decoder_itself_goes_on_training() -> None:
    decoder = tiny_decoder()
    packed(decoder)
    logits(decoder).sum().backward()
    assert all(weight.grad is not None for weight in decoder.model.parameters())


@torch.no_grad()
def test_hooks_on_a_layer_see_what_stands_in_for_it() -> None:
    decoder = tiny_decoder()
    twin = packed(decoder)
    linear = [it for it in decoder.model.modules() if type(it) is nn.Linear]
    seen: list[nn.Module] = []

    def note(module: nn.Module, *_: object) -> None:
        seen.append(module)

    handles = [it.register_forward_hook(note) for it in linear]
    logits(twin)
    assert len(seen) == len(linear)
    for handle in handles:
        handle.remove()
    logits(twin)
    assert len(seen) == len(linear)


def test_the_second_copy_is_counted() -> None:
    decoder = tiny_decoder()
    weights = [it.weight for it in decoder.backbone.modules() if type(it) is nn.Linear]
    head = [it.weight for it in decoder.head.modules() if type(it) is nn.Linear]
    assert packed_bytes(decoder) == 4 * sum(weight.numel() for weight in [*weights, *head]) > 0
