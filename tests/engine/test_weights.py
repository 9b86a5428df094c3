"""The checksum finds every mistake; weights are copied whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_model
from turnpoint.engine.weights import copy_weights, weights_checksum
from turnpoint.errors import WeightSyncError


def tied_model() -> Any:
    model = tiny_model("gpt2")  # embedding and head are one tensor
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


def state_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_checksum_changes_with_every_kind_of_mistake() -> None:
    state = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    checksum = weights_checksum(state)
    assert weights_checksum(dict(reversed(state.items()))) == checksum
    others = [
        {"a": state["b"], "b": state["a"]},
        {"a": state["a"].flip(0), "b": state["b"]},
        {"a": state["a"], "c": state["b"]},
        {"a": state["a"]},
        {"a": state["a"].reshape(1, 2), "b": state["b"]},
        {"a": state["a"].bfloat16(), "b": state["b"]},
        {"a": state["a"] + 1e-7, "b": state["b"]},
    ]
    assert len({checksum, *map(weights_checksum, others)}) == 1 + len(others)


def test_checksum_sees_values_not_memory() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    assert weights_checksum({"a": values}) == weights_checksum({"a": values.t().contiguous().t()})
    assert weights_checksum({"a": torch.tensor(1.0)}) != weights_checksum({"a": torch.tensor(2.0)})


def test_copies_in_place_and_returns_the_senders_checksum() -> None:
    model, sender = tied_model(), tiny_model("gpt2", seed=1)
    pointers = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    assert copy_weights(model, state_of(sender)) == weights_checksum(state_of(sender))
    assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == pointers
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, sender.get_parameter(name))


def test_weights_that_are_one_memory_count_as_changed() -> None:
    """A fused optimiser moves weights without raising their version, by which packed weights are renewed."""
    model = tied_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    before = {name: weight._version for name, weight in model.named_parameters()}
    optimizer.step()
    copy_weights(model, {name: weight.detach() for name, weight in model.named_parameters()})
    assert all(weight._version > before[name] for name, weight in model.named_parameters())


def test_frozen_weights_neither_travel_nor_arrive() -> None:
    """What an adapter stands on is never sent, never asked for, and never written over."""
    model, sender = tied_model(), tiny_model("gpt2", seed=1)
    name = "transformer.ln_f.weight"
    model.requires_grad_(False).get_parameter(name).requires_grad_(True)
    before, state = state_of(model), {name: state_of(sender)[name] + 1}
    assert copy_weights(model, state) == weights_checksum(state)
    assert torch.equal(model.get_parameter(name), state[name])
    rest = {key: weight for key, weight in state_of(model).items() if key != name}
    assert all(torch.equal(weight, before[key]) for key, weight in rest.items())
    with pytest.raises(WeightSyncError, match=r"is none of the model's 1 trained ones"):
        copy_weights(model, state | {"transformer.ln_f.bias": torch.zeros(32)})
    with pytest.raises(WeightSyncError, match="1 weights are missing"):
        copy_weights(model, {})


@pytest.mark.parametrize("twice", [False, True])
def test_ties_are_kept_however_often_they_are_named(twice: bool) -> None:
    model = tied_model()
    state = state_of(tiny_model("gpt2", seed=1))
    if twice:
        state["lm_head.weight"] = state["transformer.wte.weight"].clone()
    assert copy_weights(model, state) == weights_checksum(state)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.equal(model.lm_head.weight, state["transformer.wte.weight"])


def _missing(state: dict[str, Tensor]) -> None:
    del state["transformer.h.1.ln_1.weight"]


def _unknown(state: dict[str, Tensor]) -> None:
    state["module.x"] = torch.zeros(1)


def _misshapen(state: dict[str, Tensor]) -> None:
    state["transformer.ln_f.bias"] = torch.zeros(31)


def _other_dtype(state: dict[str, Tensor]) -> None:
    state["transformer.ln_f.bias"] = torch.zeros(32, dtype=torch.bfloat16)


def _torn_tie(state: dict[str, Tensor]) -> None:
    state["lm_head.weight"] = state["transformer.wte.weight"] + 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_missing, r"1 weights are missing, the first is 'transformer.h.1.ln_1.weight'"),
        (_unknown, r"'module.x' is none of the model's"),
        (
            _misshapen,
            r"'transformer.ln_f.bias' is torch.float32 \(31,\), the model's is torch.float32 \(32,\)",
        ),
        (_other_dtype, r"'transformer.ln_f.bias' is torch.bfloat16"),
        (_torn_tie, r"'lm_head.weight' is tied to another"),
    ],
)
def test_a_bad_state_changes_nothing(spoil: Callable[[dict[str, Tensor]], None], message: str) -> None:
    model = tied_model()
    before, state = state_of(model), state_of(tiny_model("gpt2", seed=1))
    spoil(state)
    with pytest.raises(WeightSyncError, match=message):
        copy_weights(model, state)
    assert weights_checksum(state_of(model)) == weights_checksum(before)
