"""Parallel draft heads: by hand, and what they do not look at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from tests.models.mtp_models import random_text
from tests.tiny import tiny_decoder
from turnpoint.models.attention import CausalLayout
from turnpoint.models.heads import detached_head
from turnpoint.models.mtp_host import host_of
from turnpoint.models.mtp_layout import ParallelLayout
from turnpoint.models.mtp_parallel import ParallelHeads


@torch.no_grad()
def test_new_heads_draft_what_the_backbone_predicts_next_and_trained_ones_by_the_formula() -> None:
    heads = ParallelHeads(host_of(tiny_decoder()), ParallelLayout(depth=2))
    hidden = random_text([4]).hidden
    assert torch.equal(heads.draft(hidden, depth=2), hidden.expand(2, -1, -1))
    weight, bias = torch.randn(32, 32), torch.randn(32)
    heads.blocks[1].load_state_dict({"weight": weight, "bias": bias})
    first, second = heads.draft(hidden, depth=2)
    assert torch.equal(first, hidden)
    assert torch.allclose(second, hidden + functional.silu(hidden @ weight.T + bias), atol=1e-6)


def test_a_chain_of_them_counts_as_any_other_and_does_not_look_at_tokens() -> None:
    heads = ParallelHeads(host_of(tiny_decoder()), ParallelLayout(depth=3))
    text = random_text([5, 4])
    chain = heads.chain(**text.inputs(), depth=3, valid=torch.ones(9, dtype=torch.bool))
    assert chain.counts.sum(-1).tolist() == [5, 3, 1]
    other = heads.chain(**replace(text, token_ids=text.token_ids + 1).inputs(), depth=3)
    assert torch.equal(chain.hidden, other.hidden)
    with pytest.raises(ValueError, match="these heads draft at most 3 tokens"):
        heads.chain(**text.inputs(), depth=4)


def test_their_loss_trains_them_alone() -> None:
    decoder = tiny_decoder("gemma")  # whose head is the embedding
    heads = ParallelHeads(host_of(decoder), ParallelLayout(depth=2))
    text = random_text([6])
    with heads.watching() as fed:
        final = decoder.hidden(text.token_ids, text.positions, CausalLayout())
    chain = heads.chain(**replace(text, hidden=fed(final)).inputs(), depth=2)
    detached_head(decoder)(chain.hidden[chain.counts]).square().mean().backward()
    assert all(it.grad is None for it in decoder.model.parameters())
    assert all(it.grad is not None and bool(it.grad.any()) for it in heads.parameters())
