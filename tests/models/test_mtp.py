"""The recurrent chain: against transformers' own code, step by step against itself, what it leaves alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_layers import MtpLayer

from tests.models.mtp_models import FAMILIES, Text, family_host, random_heads, random_text
from tests.tiny import ARCHITECTURES, GEMMA_WINDOW, tiny_decoder, tiny_model
from turnpoint.drafting.fused import fused_linear_tv
from turnpoint.errors import ModelError
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder
from turnpoint.models.heads import detached_head, linear_head
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_attention import DraftCache, PackedLayout
from turnpoint.models.mtp_host import Host, host_of
from turnpoint.models.mtp_layout import mtp_layout
from turnpoint.models.mtp_shift import shifted
from turnpoint.models.packed import packed

LENGTHS = [9, 3, 14]
WIRINGS = [("first_use", 1), ("first_use", 2), ("same_depth", 1), ("same_depth", 2)]


def decoded(heads: MtpHeads, text: Text, depth: int) -> Tensor:
    """Returns the states of one sequence, [depth, anchors, D], drafted round by round over a cache.

    Rounds of two anchors, as if one draft were accepted in each: what a chain left in the cache has to go.
    """
    cache = DraftCache(heads.layout.slots(depth))
    rows = torch.zeros(depth, len(text.token_ids), text.hidden.shape[1])
    for start in range(0, len(text.token_ids) - depth - 1, 2):
        anchors = torch.arange(start, start + 2)
        carried = text.hidden[anchors]
        for i in range(1, depth + 1):
            slot = heads.slot(i)
            if heads.extends(i):  # a chain from the last anchor alone
                anchors, carried = anchors[-1:], carried[-1:]
            positions = text.positions[anchors] + i - 1
            layout = (
                cache.extend(slot, positions=positions)
                if heads.extends(i)
                else cache.write(slot, anchor=start, positions=positions)
            )
            step = heads.step(
                depth=i,
                hidden=carried,
                token_ids=text.token_ids[anchors + i],
                positions=positions,
                layout=layout,
            )
            rows[i - 1, anchors], carried = step.hidden, step.carried
    return rows


@torch.no_grad()
@pytest.mark.parametrize(("attention", "layers"), WIRINGS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_decoding_over_a_cache_is_the_teacher_forced_forward(
    architecture: str, attention: str, layers: int
) -> None:
    heads = random_heads(host_of(tiny_decoder(architecture)), layers=layers, attention=attention)
    text = random_text(LENGTHS)
    chain = heads.chain(**text.inputs(), depth=4)
    row = decoded(heads, text.parts()[-1], 4)
    anchors = slice(sum(LENGTHS[:-1]), None)
    expected = chain.hidden[:, anchors]
    for i in range(4):
        reached = (row[i] != 0).any(-1)
        assert reached.sum() >= (4 if heads.extends(i + 1) else 8)
        assert torch.allclose(row[i, reached], expected[i, reached], atol=1e-4)


@torch.no_grad()
def test_deeper_depths_do_not_see_the_same_in_both_kinds_of_attention() -> None:
    host = host_of(tiny_decoder())
    text = random_text(LENGTHS)
    first, same = (
        random_heads(host, attention=kind).chain(**text.inputs(), depth=2).hidden
        for kind in ("first_use", "same_depth")
    )
    assert torch.equal(first[0], same[0])
    starts = [0, 9, 12]
    assert not torch.allclose(first[1], same[1], atol=1e-3)
    # at its first anchor a sequence has one key of depth 1 with the one, none with the other
    assert not torch.allclose(first[1, starts], same[1, starts], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_a_layer_with_a_window_keeps_to_it_in_training_and_in_decoding(kind: str) -> None:
    model = tiny_model("gemma")
    config = copy.deepcopy(model.config)
    config.layer_types = ["full_attention", kind]
    torch.manual_seed(0)
    heads = random_heads(Host(type(model)(config), vocab_size=config.vocab_size))
    text = random_text([3 * GEMMA_WINDOW])
    chain = heads.chain(**text.inputs(), depth=3).hidden
    row = decoded(heads, text, 3)
    for i in range(3):
        reached = (row[i] != 0).any(-1)
        assert torch.allclose(row[i, reached], chain[i, reached], atol=1e-4)
    other = replace(text, hidden=text.hidden.clone())
    other.hidden[0] += 1.0
    moved = (heads.chain(**other.inputs(), depth=3).hidden - chain).abs().amax(-1) > 1e-6
    last = [int(it.nonzero().max()) for it in moved]
    assert last == [GEMMA_WINDOW - 1 if kind == "sliding_attention" else 3 * GEMMA_WINDOW - 1] * 3


@torch.no_grad()
def test_the_first_depth_is_transformers_own_layer() -> None:
    """Its MtpLayer knows one wiring: embedding first, the state after the final norm handed on."""
    host = family_host("glm4_moe")
    heads = random_heads(host)
    fusion, text = heads.fusion(1), random_text([11])
    config = copy.deepcopy(host.config)
    config.num_hidden_layers, config.first_k_dense_replace, config._attn_implementation = 1, 0, "eager"
    theirs: Any = MtpLayer(config, type(host.layer), type(host.norm), 0)
    theirs.mtp_block.load_state_dict(heads.blocks[0].state_dict())
    for part, ours in {
        "enorm": fusion.embedding_norm,
        "hnorm": fusion.hidden_norm,
        "eh_proj": fusion.projection,
        "post_norm": fusion.final_norm,
    }.items():
        getattr(theirs, part).load_state_dict(ours.state_dict())
    backbone: Any = host.backbone
    places = text.positions.unsqueeze(0)
    mask = torch.full((11, 11), -torch.inf).triu(1)[None, None]
    following = torch.cat([text.token_ids[1:], torch.zeros(1, dtype=torch.long)])
    expected = theirs(
        host.embed(following).unsqueeze(0),
        text.hidden.unsqueeze(0),
        position_embeddings=backbone.rotary_emb(text.hidden.unsqueeze(0), places),
        attention_mask=mask,
        position_ids=places,
        cache=None,
    )
    actual = heads.chain(**text.inputs(), depth=1).hidden[0]
    assert torch.allclose(actual[:-1], expected[0, :-1], atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["first_use", "same_depth"])
def test_packing_changes_nothing(attention: str) -> None:
    heads = random_heads(host_of(tiny_decoder("qwen3")), attention=attention)
    text = random_text(LENGTHS)
    together = heads.chain(**text.inputs(), depth=3)
    alone = [heads.chain(**part.inputs(), depth=3) for part in text.parts()]
    assert torch.equal(together.counts, torch.cat([it.counts for it in alone], dim=1))
    joined = torch.cat([it.hidden for it in alone], dim=1)
    assert torch.allclose(together.hidden[together.counts], joined[together.counts], atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["first_use", "same_depth"])
def test_a_draft_reads_what_lies_before_it_and_nothing_else(attention: str) -> None:
    """Depth i at anchor t reads tokens up to t + i and states up to t: the token it drafts is not read."""
    heads = random_heads(host_of(tiny_decoder()), attention=attention)
    text = random_text([12])
    base = heads.chain(**text.inputs(), depth=3).hidden
    changed = replace(text, token_ids=text.token_ids.clone(), hidden=text.hidden.clone())
    changed.token_ids[7] = (text.token_ids[7] + 1) % 50
    changed.hidden[7] += 1.0
    moved = (heads.chain(**changed.inputs(), depth=3).hidden - base).abs().amax(-1) > 1e-6
    for i in range(3):
        first = 7 - (i + 1)  # the first anchor that reads token 7 at depth i + 1
        assert moved[i].nonzero()[0] == first
        assert moved[i, first : 12 - i - 1].all()


@torch.no_grad()
def test_what_is_handed_on_and_read_is_what_the_layout_says() -> None:
    host = host_of(tiny_decoder())
    text = random_text([8])
    plain = random_heads(host)

    def chain(**changes: Any) -> Tensor:
        heads = MtpHeads(host, replace(plain.layout, **changes))
        heads.load_state_dict(plain.state_dict())
        return heads.chain(**text.inputs(), depth=2).hidden

    base = chain()
    raw = chain(carried="pre_norm")
    assert torch.equal(raw[0], base[0])
    assert not torch.allclose(raw[1], base[1], atol=1e-3)
    turned = MtpHeads(host, replace(plain.layout, order="hidden_first"))
    state = plain.state_dict()
    weight = state["fusions.0.projection.weight"]
    turned.load_state_dict(
        {**state, "fusions.0.projection.weight": torch.cat([weight[:, 32:], weight[:, :32]], 1)}
    )
    assert torch.allclose(turned.chain(**text.inputs(), depth=2).hidden, base, atol=1e-5)
    blind = chain(zero_first=True)
    assert not torch.allclose(blind[0, 0], base[0, 0], atol=1e-3)
    other = replace(text, token_ids=text.token_ids.clone())
    other.token_ids[1] = (other.token_ids[1] + 1) % 50
    heads = MtpHeads(host, replace(plain.layout, zero_first=True))
    heads.load_state_dict(plain.state_dict())
    assert torch.equal(
        heads.chain(**other.inputs(), depth=1).hidden[0, 0], blind[0, 0]
    )  # token 1 is not read


def test_states_before_the_final_norm_are_caught_on_the_way() -> None:
    decoder = tiny_decoder()
    text = random_text([10])
    for layout in (mtp_layout("turnpoint"), mtp_layout("deepseek_v3")):
        heads = MtpHeads(host_of(decoder), layout)
        for runner in (decoder, packed(decoder)):
            with heads.watching() as fed, torch.no_grad():
                final = runner.hidden(text.token_ids, text.positions, CausalLayout())
            given = fed(final)
            assert not given.requires_grad
            if layout.hidden == "pre_norm":
                assert not torch.allclose(given, final)
                drafts = [
                    heads.step(
                        depth=1,
                        hidden=states,
                        token_ids=text.token_ids,
                        positions=text.positions,
                        layout=CausalLayout(),
                    ).hidden
                    for states in (given, heads.fed_by(final))
                ]
                torch.testing.assert_close(*drafts, atol=1e-4, rtol=1e-4)
                given = decoder.backbone.norm(given)
            assert torch.allclose(given, final, atol=1e-5)
    before = len(decoder.backbone.norm._forward_pre_hooks)
    assert before == 0


def draft_loss(decoder: Decoder, heads: MtpHeads, text: Text, final: Tensor, fed: Any) -> Tensor:
    chain = heads.chain(
        hidden=fed(final), token_ids=text.token_ids, positions=text.positions, lengths=text.lengths, depth=2
    )
    logits = detached_head(decoder)(chain.hidden[chain.counts])
    return torch.logsumexp(logits, -1).mean() - logits[:, 3].mean()


@pytest.mark.parametrize("architecture", ARCHITECTURES)  # llama here has a head of its own, gemma a tied one
@pytest.mark.parametrize("hidden", ["pre_norm", "post_norm"])
def test_a_draft_loss_trains_the_heads_and_not_a_bit_of_the_backbone(architecture: str, hidden: Any) -> None:
    text = random_text([6, 9])
    gradients: list[list[Tensor]] = []
    for with_drafts in (False, True):
        decoder = tiny_decoder(architecture)
        heads = random_heads(host_of(decoder), hidden=hidden)
        with heads.watching() as fed:
            final = decoder.hidden(text.token_ids, text.positions, CausalLayout())
        policy = torch.log_softmax(decoder.logits(final), -1)[:, 5].mean()
        if with_drafts:
            loss = draft_loss(decoder, heads, text, final, fed)
            loss.backward()
            assert [name for name, it in decoder.model.named_parameters() if it.grad is not None] == []
            assert all(it.grad is not None and bool(it.grad.isfinite().all()) for it in heads.parameters())
            assert any(bool(it.grad.any()) for it in heads.parameters() if it.grad is not None)
            policy = policy + draft_loss(decoder, heads, text, final, fed)
        policy.backward()
        gradients.append([it.grad for it in decoder.model.parameters() if it.grad is not None])
    alone, together = gradients
    assert len(alone) == len(together) > 0
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_states_that_were_not_detached_are() -> None:
    decoder, text = tiny_decoder(), random_text([8])
    heads = random_heads(host_of(decoder))
    final = decoder.hidden(text.token_ids, text.positions, CausalLayout())
    heads.chain(**replace(text, hidden=final).inputs(), depth=2).hidden.sum().backward()
    assert all(it.grad is None for it in decoder.model.parameters())


def test_a_chain_meets_the_backbones_law_of_the_same_token() -> None:
    """Depth i at anchor t against the backbone's state at t + i; the fused loss takes just these rows."""
    decoder, text = tiny_decoder(), random_text([6, 9])
    heads = random_heads(host_of(decoder))
    with heads.watching() as fed, torch.no_grad():
        final = decoder.hidden(text.token_ids, text.positions, PackedLayout(text.lengths))
    chain = heads.chain(**replace(text, hidden=fed(final)).inputs(), depth=2)
    counts = chain.counts
    fused = fused_linear_tv(
        head=linear_head(decoder),
        target_hidden=shifted(final, by=1, lengths=text.lengths),
        draft_hidden=chain.hidden,
        next_ids=shifted(text.token_ids, by=2, lengths=text.lengths),
        mask=counts.T,
        denominator=float(counts.any(0).sum()),
    )
    fused.loss.backward()
    assert all(it.grad is not None for it in heads.parameters())
    assert all(it.grad is None for it in decoder.model.parameters())
    found: Any = counts.nonzero()
    for i, anchor in found.tolist():
        target, drafted = (
            torch.softmax(decoder.logits(it.detach()), -1)[0]
            for it in (final[anchor + i + 1].unsqueeze(0), chain.hidden[i, anchor].unsqueeze(0))
        )
        assert torch.allclose(fused.alphas[anchor, i], torch.minimum(target, drafted).sum(), atol=1e-5)


def test_rows_that_do_not_count_leave_no_trace_in_the_gradient() -> None:
    """What follows a text in its pack, or is masked in it, is of no consequence, and finite."""
    decoder = tiny_decoder()
    text = random_text([10, 1, 2])
    grads: list[Tensor] = []
    for part in (text, text.parts()[0]):
        heads = random_heads(host_of(decoder))
        chain = heads.chain(**part.inputs(), depth=3)
        assert bool(chain.hidden.isfinite().all())
        assert int(chain.counts.sum()) == 8 + 7 + 6
        chain.hidden[chain.counts].sum().backward()
        weight = heads.fusion(1).projection.weight
        assert isinstance(weight.grad, Tensor)
        grads.append(weight.grad)
    assert torch.allclose(grads[0], grads[1], atol=1e-4)


def test_heads_own_their_weights_and_none_of_the_backbone() -> None:
    decoder = tiny_decoder()
    heads = MtpHeads(host_of(decoder), mtp_layout("turnpoint", layers=2))
    theirs = {it.data_ptr() for it in decoder.model.parameters()}
    assert not theirs & {it.data_ptr() for it in heads.parameters()}
    assert all(it.requires_grad for it in heads.parameters())
    assert {name.partition(".")[0] for name in heads.state_dict()} == {"fusions", "blocks"}
    size = sum(it.numel() for it in decoder.backbone.layers[-1].parameters())
    assert sum(it.numel() for it in heads.parameters()) == 2 * (size + 2 * 32 * 32 + 3 * 32)
    same = MtpHeads(host_of(packed(decoder)), mtp_layout("turnpoint", layers=2))  # from what trains
    assert same.state_dict().keys() == heads.state_dict().keys()


@pytest.mark.parametrize("depth", [0, -1, 17])
def test_a_depth_out_of_bounds_is_refused(depth: int) -> None:
    heads = MtpHeads(host_of(tiny_decoder()), mtp_layout("turnpoint"))
    text = random_text([6])
    with pytest.raises(ValueError, match=f"a draft of depth {depth}: "):
        heads.chain(**text.inputs(), depth=depth)
    with pytest.raises(ValueError, match=f"a draft of depth {depth}: "):
        heads.step(
            depth=depth,
            hidden=text.hidden,
            token_ids=text.token_ids,
            positions=text.positions,
            layout=CausalLayout(),
        )


def test_a_text_shorter_than_the_depth_has_nothing_that_counts() -> None:
    heads = random_heads(host_of(tiny_decoder()))
    chain = heads.chain(**random_text([2, 1]).inputs(), depth=5)
    assert chain.hidden.shape == (5, 3, 32)
    assert bool(chain.hidden.isfinite().all())
    assert not chain.counts.any()
    with pytest.raises(ValueError, match="sequences of 2 tokens in all for a row of 3"):
        heads.chain(**replace(random_text([2, 1]), lengths=[2]).inputs(), depth=1)


def test_a_cache_without_the_anchors_before_is_refused() -> None:
    cache = DraftCache(1)
    with pytest.raises(ValueError, match="anchor 3 of a cache that holds 0"):
        cache.write(0, anchor=3, positions=torch.arange(2))


@pytest.mark.parametrize("preset", FAMILIES)
def test_norms_stored_in_another_way_are_refused(preset: str) -> None:
    other = "mimo" if preset == "qwen3_next" else "qwen3_next"
    with pytest.raises(ModelError, match=f"draft heads of layout {other}: its norms are stored as"):
        MtpHeads(family_host(preset), mtp_layout(other))
