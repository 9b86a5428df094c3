"""An adapter adds (alpha / rank) B A to frozen matrices, and nothing else changes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.adapters import (
    ALPHA,
    RANK,
    adapted,
    disturb,
    frozen_copies,
    logits_of,
    merge_by_hand,
    plain,
    trained_tensors,
)
from tests.tiny import ARCHITECTURES, tiny_model
from turnpoint.engine.weights import weights_checksum
from turnpoint.errors import ModelError
from turnpoint.models import add_adapter, base_state, merged_state
from turnpoint.models.decoder import Decoder

TYPES = [torch.float32, torch.bfloat16]


def loaded_with(state: dict[str, Any], architecture: str, dtype: torch.dtype) -> Decoder:
    """Returns the plain model with the weights in `state`, all of them."""
    decoder = plain(architecture, dtype=dtype)
    decoder.model.load_state_dict(state, strict=True)
    return decoder


# --- a new adapter ------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", TYPES)
@torch.no_grad()
def test_a_new_adapter_changes_no_logit(architecture: str, dtype: torch.dtype) -> None:
    decoder, _ = adapted(architecture, dtype=dtype)
    assert torch.equal(logits_of(decoder), logits_of(plain(architecture, dtype=dtype)))


@pytest.mark.parametrize("dtype", TYPES)
def test_only_the_adapter_trains_in_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    decoder, adapter = adapted(dtype=dtype)
    trained = trained_tensors(decoder)
    assert {name.split(".")[-3] for name in trained} == {"lora_A", "lora_B"}
    assert {weight.dtype for weight in trained.values()} == {dtype}
    assert len(frozen_copies(decoder)) == len(list(tiny_model().parameters()))
    # two layers: q, o and the three of the MLP, and k, v that are half as wide
    sides = 2 * ((32 + 32) * 2 + (32 + 16) * 2 + (32 + 64) * 3)
    assert (adapter.ranks, adapter.matrices, adapter.parameters) == ((RANK,), 14, RANK * sides)


def test_the_start_is_a_function_of_the_seed_alone() -> None:
    model = tiny_model()
    before = torch.get_rng_state()
    add_adapter(model, rank=RANK, alpha=ALPHA, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    first, second, other = (adapted(seed=seed)[0] for seed in (3, 3, 4))
    checksums = [weights_checksum(trained_tensors(it)) for it in (first, second, other)]
    assert checksums[0] == checksums[1] != checksums[2]


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (("q_proj",), ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]),
        (("layers.1.mlp.up_proj",), ["model.layers.1.mlp.up_proj"]),
        (("lm_head",), ["lm_head"]),
    ],
)
def test_modules_are_ends_of_names(modules: tuple[str, ...], expected: list[str]) -> None:
    decoder, adapter = adapted(modules=modules)
    assert sorted({name.split(".lora_")[0] for name in trained_tensors(decoder)}) == expected
    assert adapter.matrices == len(expected)


@pytest.mark.parametrize("name", ["query", "proj", "mlp", "embed_tokens", "norm"])
def test_what_is_no_linear_layer_is_refused_with_those_there_are(name: str) -> None:
    known = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"
    with pytest.raises(ModelError, match=f"{name!r} is no linear layer of the model; it has {known}$"):
        adapted(modules=["q_proj", name])


def test_a_head_that_is_the_embedding_is_refused() -> None:
    with pytest.raises(ModelError, match="shares its weight with the embedding"):
        adapted("gpt2", modules=["lm_head"])


@torch.no_grad()
def test_a_head_of_its_own_can_be_adapted() -> None:
    decoder = disturb(adapted(modules=["lm_head"])[0])
    logits = logits_of(decoder)
    assert not torch.allclose(logits, logits_of(plain()), atol=1e-2)
    merged = loaded_with(merged_state(decoder.model), "llama", torch.float32)
    torch.testing.assert_close(logits_of(merged), logits, rtol=1e-4, atol=1e-4)


def test_without_peft_there_is_one_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"model.adapter: needs peft: pip install 'turnpoint\[peft\]'"):
        adapted()


# --- the law ------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_the_law_is_that_of_the_sum_by_hand(architecture: str) -> None:
    decoder = disturb(adapted(architecture)[0])
    logits = logits_of(decoder)
    assert not torch.allclose(logits, logits_of(plain(architecture)), atol=1e-2)
    by_hand = merge_by_hand(decoder, plain(architecture))
    torch.testing.assert_close(logits, logits_of(by_hand), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_are_those_of_the_sum_by_hand(architecture: str) -> None:
    decoder = disturb(adapted(architecture)[0])
    trained = trained_tensors(decoder)

    def gradients(of: Decoder) -> list[torch.Tensor]:
        loss = torch.log_softmax(logits_of(of), -1)[:, 30].sum()
        return list(torch.autograd.grad(loss, list(trained.values())))

    ours, by_hand = gradients(decoder), gradients(merge_by_hand(decoder, plain(architecture)))
    for name, one, other in zip(trained, ours, by_hand, strict=True):
        assert bool(one.any()), name
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


# --- merged, and taken out ----------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", TYPES)
@torch.no_grad()
def test_merging_adds_in_float32_and_rounds_once(architecture: str, dtype: torch.dtype) -> None:
    decoder = disturb(adapted(architecture, dtype=dtype)[0])
    state = merged_state(decoder.model)
    by_hand = merge_by_hand(decoder, plain(architecture, dtype=dtype))
    untouched = plain(architecture, dtype=dtype).model.state_dict()
    assert set(state) == set(untouched)
    changed = {name for name in state if not torch.equal(state[name], untouched[name])}
    assert changed == {f"{name.split('.lora_')[0]}.weight" for name in trained_tensors(decoder)}
    for name in changed:
        path, _, leaf = name.rpartition(".")
        expected = getattr(by_hand.model.get_submodule(path), leaf)
        assert state[name].dtype == dtype
        torch.testing.assert_close(state[name], expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 0)


def test_merging_a_hundred_times_leaves_every_bit() -> None:
    decoder = disturb(adapted(dtype=torch.bfloat16)[0])
    before = weights_checksum(decoder.model.state_dict())
    states = {weights_checksum(merged_state(decoder.model)) for _ in range(100)}
    assert len(states) == 1
    assert weights_checksum(decoder.model.state_dict()) == before


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", TYPES)
@torch.no_grad()
def test_the_base_is_one_exchange_of_tensors_away(architecture: str, dtype: torch.dtype) -> None:
    """No second model: the reference of an adapter policy is as small as the adapter."""
    decoder, adapter = adapted(architecture, dtype=dtype)
    disturb(decoder)
    policy, state = logits_of(decoder), base_state(decoder.model)
    assert sum(tensor.numel() for tensor in state.values()) == adapter.parameters
    assert set(state) == set(trained_tensors(decoder))
    kept = {name: weight.clone() for name, weight in trained_tensors(decoder).items()}
    for values, expected in ((state, logits_of(plain(architecture, dtype=dtype))), (kept, policy)):
        for name, weight in trained_tensors(decoder).items():
            weight.copy_(values[name])
        assert torch.equal(logits_of(decoder), expected)
