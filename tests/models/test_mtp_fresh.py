"""New draft heads: copies that repeat, a projection by least squares, for whatever the library runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.adapters import adapted, disturb, plain
from tests.models.mtp_models import FAMILIES, ROWS, Text, family_model, random_text
from tests.tiny import ARCHITECTURES, tiny_decoder
from turnpoint.errors import ModelError
from turnpoint.models.adapter import merged_state
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_attention import PackedLayout
from turnpoint.models.mtp_fresh import fit_projection, fresh_heads, parallel_heads
from turnpoint.models.packed import packed


def states(decoder: Decoder, heads: MtpHeads, text: Text, depth: int) -> Tensor:
    """Returns the draft states of a text by the backbone's own hidden states."""
    with heads.watching() as fed, torch.no_grad():
        final = decoder.hidden(text.token_ids, text.positions, PackedLayout(text.lengths))
    inputs: dict[str, Any] = {**text.inputs(), "hidden": fed(final)}
    return heads.chain(**inputs, depth=depth).hidden.detach()


def fitted(decoder: Decoder, text: Text, **options: Any) -> MtpHeads:
    heads = fresh_heads(decoder, **options)
    fit_projection(heads, decoder, token_ids=text.token_ids, positions=text.positions, lengths=text.lengths)
    return heads


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_new_heads_are_copies_and_repeat(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    before = torch.get_rng_state()
    heads, again = (fresh_heads(decoder, layers=2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's draws move
    state = heads.state_dict()
    assert all(torch.equal(it, state[name]) for name, it in again.state_dict().items())
    last = dict(decoder.backbone.named_children())[heads.host.list_name][-1]  # type: ignore[index]
    for block in heads.blocks:
        assert all(torch.equal(it, last.state_dict()[name]) for name, it in block.state_dict().items())
    text = random_text([6], rows=50)
    assert bool(states(decoder, heads, text, 3).isfinite().all())


def test_a_new_projection_passes_the_state_on() -> None:
    heads = fresh_heads(tiny_decoder())
    text = random_text([5])
    given = heads.fused(depth=1, hidden=text.hidden, token_ids=text.token_ids, positions=text.positions)
    assert torch.equal(heads.fusion(1).projection(given), given[:, 32:])
    turned = MtpHeads(heads.host, replace(heads.layout, order="hidden_first"))
    given = turned.fused(depth=1, hidden=text.hidden, token_ids=text.token_ids, positions=text.positions)
    assert torch.equal(turned.fusion(1).projection(given), given[:, :32])


@pytest.mark.parametrize("preset", ["deepseek_v3", "glm4_moe", "mimo"])
def test_mixtures_latent_attention_and_biases_get_heads_too(preset: str) -> None:
    assert preset in FAMILIES
    decoder = Decoder(family_model(preset), vocab_size=ROWS)
    text = random_text([12, 20, 30, 9])
    heads = fitted(decoder, text)
    assert bool(states(decoder, heads, text, 2).isfinite().all())


def test_least_squares_by_hand() -> None:
    """The gradient of |x W' - y|^2 + ridge |W|^2 is zero at W, y what the last layer is given at t + 1."""
    decoder = tiny_decoder("qwen3")
    text = random_text([40, 60], rows=50)
    heads = fitted(decoder, text)
    with heads.host.watching_last_layer() as given, torch.no_grad():
        final = decoder.hidden(text.token_ids, text.positions, PackedLayout(text.lengths))
    anchors = torch.tensor([*range(39), *range(40, 99)])
    with torch.no_grad():
        inputs = heads.fused(
            depth=1,
            hidden=final[anchors],
            token_ids=text.token_ids[anchors + 1],
            positions=text.positions[anchors],
        ).double()
    weight = heads.fusion(1).projection.weight.detach().double().requires_grad_()
    wanted = given[0][anchors + 1].double()
    ridge = 1e-2 * inputs.square().sum(0).mean()
    loss = (inputs @ weight.T - wanted).square().sum() + ridge * weight.square().sum()
    loss.backward()
    assert isinstance(weight.grad, Tensor)
    assert float(weight.grad.abs().max()) < 1e-4 * float((inputs.T @ wanted).abs().max())


@pytest.mark.parametrize("layers", [1, 2])
def test_fitted_heads_come_nearer_to_the_backbones_next_states(layers: int) -> None:
    decoder = tiny_decoder()
    text = random_text([200] * 8, rows=50)
    with torch.no_grad():
        final = decoder.hidden(text.token_ids, text.positions, PackedLayout(text.lengths))
    far, near = (
        [float((rows[: 198 - i] - final[i + 1 : 199]).square().mean()) for i, rows in enumerate(drafts)]
        for drafts in (
            states(decoder, fresh_heads(decoder, layers=layers), text, layers),
            states(decoder, fitted(decoder, text, layers=layers), text, layers),
        )
    )
    assert all(a < 0.8 * b for a, b in zip(near, far, strict=True)), (near, far)


def test_heads_of_an_adapted_backbone_copy_the_sum() -> None:
    decoder, _ = adapted()
    disturb(decoder)
    merged = plain()
    merged.model.load_state_dict(merged_state(decoder.model))
    state = fresh_heads(merged).state_dict()
    heads = fresh_heads(decoder)
    assert heads.state_dict().keys() == state.keys()
    assert all(torch.allclose(it, state[name], atol=1e-6) for name, it in heads.state_dict().items())
    assert all(it.requires_grad for it in heads.parameters())
    # the adapter stays where it is
    assert any("lora_A" in name for name, _ in decoder.model.named_parameters())


def test_a_backbone_packed_for_sampling_gives_the_same_heads() -> None:
    decoder = tiny_decoder()
    state = fresh_heads(decoder).state_dict()
    assert all(torch.equal(it, state[name]) for name, it in fresh_heads(packed(decoder)).state_dict().items())


def test_no_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="draft heads of 0 layers"):
        fresh_heads(tiny_decoder(), layers=0)
    with pytest.raises(ValueError, match="a draft of depth 0"):
        parallel_heads(tiny_decoder(), depth=0)
    assert parallel_heads(tiny_decoder(), depth=2).max_depth == 2
