"""What draft heads see of a model, found by running it; and models that they are refused for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM

from tests.models.mtp_models import FAMILIES, family_host
from tests.tiny import ARCHITECTURES, tiny_model
from turnpoint.errors import ModelError
from turnpoint.models.attention import CausalLayout
from turnpoint.models.mtp_host import Host


@torch.no_grad()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_layer_runs_on_its_own_as_in_the_model(architecture: str) -> None:
    model = tiny_model(architecture)
    host = Host(model, vocab_size=model.config.vocab_size)
    positions = torch.arange(5, 17)
    with host.watching_last_layer() as given, host.watching_final_norm() as made:
        final = host.backbone(
            input_ids=positions[None] * 3,
            position_ids=positions[None],
            use_cache=False,
            layout=CausalLayout(),
        ).last_hidden_state[0]
    output = host.run(host.new_layer(), given[0], positions, CausalLayout())
    assert torch.equal(output, made[0])
    assert torch.equal(host.new_norm()(output), final)
    assert host.norms_are_deltas() == (architecture == "gemma")


@pytest.mark.parametrize("preset", FAMILIES)
def test_the_families_are_understood(preset: str) -> None:
    host = family_host(preset)
    assert (host.width, host.num_layers, host.list_name) == (32, 2, "layers")
    assert host.norms_are_deltas() == (preset == "qwen3_next")


def test_embeddings_come_detached() -> None:
    host = family_host("mimo")
    assert not host.embed(torch.tensor([1, 2])).requires_grad
    assert host.embedding_weight.requires_grad


def test_a_layer_that_wants_what_is_not_known_is_refused() -> None:
    model = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ModelError, match="BloomForCausalLM: is given attention_mask of type Tensor"):
        Host(model, vocab_size=64)


def test_a_layer_that_does_something_else_on_its_own_is_refused() -> None:
    model = tiny_model()
    layer = model.model.layers[-1]
    run, calls = layer.forward, iter(range(9))

    def forward(*given: Any, **named: Any) -> Tensor:
        return run(*given, **named) + next(calls)

    layer.forward = forward
    with pytest.raises(ModelError, match="its last layer does something else on its own"):
        Host(model, vocab_size=64)


def test_a_model_whose_layers_or_norm_are_not_found_is_refused() -> None:
    model = tiny_model()
    model.model.layers.append(model.model.layers[0])
    with pytest.raises(ModelError, match="its layers are no list of 2"):
        Host(model, vocab_size=64)
    model = tiny_model()
    model.model.register_forward_hook(doubled)
    with pytest.raises(ModelError, match="its final norm was not found"):
        Host(model, vocab_size=64)


def doubled(module: Any, given: Any, output: Any) -> Any:
    output.last_hidden_state = output.last_hidden_state * 2.0
    return output
