"""Draft heads learn from texts; the policy does not notice; what is measured is what an engine counts."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.drafting import overlap
from turnpoint.drafting.measure import measure_drafts
from turnpoint.drafting.rows import draft_rows
from turnpoint.drafting.texts import DraftText, batches, endless, group_texts, pack_texts, split_held_out
from turnpoint.drafting.train import LossPlan, fitting_text, train_drafts
from turnpoint.engine import TorchEngine
from turnpoint.engine.depth import FixedDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.speculation import Speculation
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_fresh import fit_projection, fresh_heads
from turnpoint.protocols import Completion, GenerateRequest
from turnpoint.training.optimizer import MasterAdamW
from turnpoint.types import (
    Author,
    FinishReason,
    Group,
    Member,
    Message,
    Task,
    TreeBuilder,
    Verdict,
    token_array,
)

DEPTH, PROMPT, NEW = 3, 6, 48


def sample(
    decoder: Decoder, count: int, speculation: Speculation | None = None
) -> tuple[list[DraftText], TorchEngine]:
    engine = TorchEngine(
        decoder, decode=lambda ids: str(ids.tolist()), context_length=CONTEXT, speculation=speculation
    )
    prompts = np.random.default_rng(0).integers(8, decoder.vocab_size, (count, PROMPT))

    async def serve() -> list[Completion]:
        return await asyncio.gather(
            *[
                engine.generate(GenerateRequest(id=str(index), prompt_ids=token_array(ids), max_tokens=NEW))
                for index, ids in enumerate(prompts.tolist())
            ]
        )

    texts = [
        DraftText(
            token_ids=token_array(np.concatenate([ids, it.token_ids])),
            sampled=np.arange(PROMPT + len(it.token_ids)) >= PROMPT,
            logprobs=np.concatenate([np.zeros(PROMPT, np.float32), it.logprobs]),
        )
        for ids, it in zip(prompts, asyncio.run(serve()), strict=True)
    ]
    return texts, engine


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def texts(decoder: Decoder) -> list[DraftText]:
    return sample(decoder, 24)[0]


def fitted(decoder: Decoder, texts: list[DraftText]) -> MtpHeads:
    heads, packed = fresh_heads(decoder), fitting_text(texts, tokens=600, decoder=decoder)
    fit_projection(
        heads, decoder, token_ids=packed.token_ids, positions=packed.positions, lengths=packed.lengths
    )
    return heads


def trained(decoder: Decoder, texts: list[DraftText], *, steps: int, seed: int = 0) -> MtpHeads:
    heads = fresh_heads(decoder)
    optimizer = MasterAdamW(heads, learning_rate=3e-3)
    plan = LossPlan(first_steps=steps // 2)
    figures = list(
        train_drafts(
            heads,
            decoder,
            texts,
            optimizer=optimizer,
            depth=DEPTH,
            steps=steps,
            batch_tokens=300,
            plan=plan,
            seed=seed,
        )
    )
    assert [it.loss_name for it in figures] == ["negative_log"] * (steps // 2) + ["end_to_end_tv"] * (
        steps - steps // 2
    )
    return heads


def test_training_raises_acceptance_and_leaves_the_policy_alone(texts: list[DraftText]) -> None:
    decoder = tiny_decoder()
    before = copy.deepcopy(decoder.model.state_dict())
    heads = trained(decoder, texts[:18], steps=24)
    assert heads.trained_depth == DEPTH
    after = decoder.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(weight.grad is None for weight in decoder.model.parameters())
    new, old = (measure_drafts(it, decoder, texts[18:], depth=DEPTH) for it in (heads, fresh_heads(decoder)))
    assert all(now > then + 0.03 for now, then in zip(new.acceptance, old.acceptance, strict=True))
    assert new.law_length > old.law_length
    assert new.text_lengths[-1] > old.text_lengths[-1]


def test_the_same_seed_gives_the_same_heads(decoder: Decoder, texts: list[DraftText]) -> None:
    one, same, other = (trained(decoder, texts, steps=2, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_measures_are_those_of_whole_laws(decoder: Decoder, texts: list[DraftText]) -> None:
    heads, few = fitted(decoder, texts), texts[:3]
    rows = draft_rows(heads, decoder, pack_texts(few), depth=DEPTH)
    assert len(rows.anchors) == sum(len(it) - PROMPT - 1 for it in few)
    alphas: Tensor = torch.zeros(DEPTH)
    for index in range(DEPTH):
        there = rows.mask[:, index].nonzero()[:, 0]
        alphas[index] = overlap(
            target_logits=decoder.logits(rows.target_hidden[there + index]) / 0.7,
            draft_logits=decoder.logits(rows.draft_hidden[index, there]) / 0.7,
        ).sum()
    found = measure_drafts(heads, decoder, few, depth=DEPTH, temperature=0.7, batch_tokens=60)
    np.testing.assert_allclose(found.overlaps, alphas.detach(), rtol=1e-4)
    np.testing.assert_array_equal(found.counts, rows.mask.sum(0))


def test_texts_foretell_what_an_engine_counts(decoder: Decoder, texts: list[DraftText]) -> None:
    heads = fitted(decoder, texts)
    foretold = measure_drafts(heads, decoder, texts, depth=2)
    assert foretold.mean_drift is not None
    assert foretold.mean_drift < 1e-4
    warm = measure_drafts(heads, decoder, texts, depth=2, temperature=1.5).mean_drift
    assert warm is not None
    assert warm > 0.1
    stats = sample(decoder, 32, Speculation(drafter=MtpDrafter(heads), depth=FixedDepth(2)))[1].stats
    counted = (stats.accepted + stats.rounds) / stats.rounds
    assert counted == pytest.approx(foretold.text_lengths[1], rel=0.05)
    assert counted > 1.2


def test_a_text_without_two_sampled_tokens_is_passed_over(decoder: Decoder) -> None:
    bare = DraftText(token_ids=token_array([5, 6, 7]), sampled=np.array([False, False, True]))
    with pytest.raises(ValueError, match="nothing to draft"):
        trained(decoder, [bare], steps=1)
    found = measure_drafts(fresh_heads(decoder), decoder, [bare], depth=2)
    assert found.counts.tolist() == [0, 0]
    assert np.isnan(found.acceptance).all()
    assert not found.texts


def test_shared_tokens_count_once() -> None:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5, 6])
    policy: dict[str, Any] = {"author": Author.POLICY, "policy_version": 0}
    root = tree.append(parent=prompt, token_ids=[7, 8, 9], logprobs=[-1, -2, -3], **policy)
    fork = tree.append(parent=root, parent_length=1, token_ids=[3, 4], logprobs=[-4, -5], **policy)
    members = tuple(
        Member(leaf=it, segments=(it,), text="", verdict=Verdict.scored(0.0), finish=FinishReason.STOP)
        for it in (root, fork)
    )
    task = Task(id="a", messages=(Message(role="user", content="q"),), answer="")
    first, second = group_texts(Group(id="1/0", task=task, tree=tree.freeze(), members=members))
    assert first.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert first.sampled.tolist() == [0, 0, 1, 1, 1]
    assert second.token_ids.tolist() == [5, 6, 7, 3, 4]
    assert second.sampled.tolist() == [0, 0, 0, 1, 1]
    assert second.logprobs is not None
    assert second.logprobs.tolist() == [0, 0, -1, -4, -5]


def test_batches_take_everything_once_a_pass() -> None:
    lengths = [5, 9, 2, 30, 4]
    assert list(batches(lengths, tokens=11)) == [[0], [1, 2], [3], [4]]
    order = endless(lengths, tokens=10, seed=0)
    seen = list[int]()
    while len(seen) < 2 * len(lengths):
        seen += next(order)
    assert sorted(seen[:5]) == sorted(seen[5:10]) == [0, 1, 2, 3, 4]


def test_groups_are_held_out_whole() -> None:
    texts = [
        DraftText(token_ids=token_array([1, 2]), sampled=np.ones(2, bool), group=str(index // 4))
        for index in range(40)
    ]
    train, held = split_held_out(texts, share=0.2, seed=0)
    assert len(train) == 32
    assert not {it.group for it in train} & {it.group for it in held}
    assert split_held_out(texts, share=0.0, seed=0) == (texts, [])
    assert len(split_held_out(texts[:4], share=0.5, seed=0)[1]) == 0
