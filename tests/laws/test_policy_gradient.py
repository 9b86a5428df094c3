"""Law: engine, credit, packing and trainer together give the exact policy gradient, by enumeration.

Every completion of a tiny model is drawn from the real engine by handing it the uniform numbers that lead
there. Weighted with their probabilities, the gradients of all groups must add up to that of the expected
reward, computed apart from turnpoint in float64. Nothing is sampled, so nothing is left to chance.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from tests.engine.serve import ask, generate
from tests.tiny import CONTEXT, tiny_decoder, tiny_model
from tests.training.groups import SHAPES, gradients, make_item, relative_difference
from turnpoint.credit import GroupAdvantage
from turnpoint.engine import TorchEngine
from turnpoint.losses import policy_gradient_loss
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Completion
from turnpoint.training import Trainer, pack_step
from turnpoint.types import (
    Author,
    BranchOrigin,
    Group,
    Member,
    Message,
    RootOrigin,
    Task,
    TreeBuilder,
    Verdict,
)

VOCAB, PADDED, STOP, LENGTH, TEMPERATURE = 3, 5, 1, 3, 0.7
PROMPT = (2, 2, 0)

Ids: TypeAlias = tuple[int, ...]
Weighted: TypeAlias = "Iterable[tuple[Group, float]]"  # groups and their probabilities


def completions(start: Ids = ()) -> Iterator[Ids]:
    """Yields all that can be sampled: up to the stop token or the limit."""
    for token in range(VOCAB):
        ids = (*start, token)
        if token == STOP or len(ids) == LENGTH:
            yield ids
        else:
            yield from completions(ids)


def reward(ids: Ids) -> float:
    return float(sum(ids) % 2) + 0.1 * ids[0]


@dataclass(frozen=True)
class World:
    """A model twice: as turnpoint runs it, and in float64 as transformers runs it."""

    decoder: Decoder
    plain: Any
    logprobs: dict[Ids, Tensor]  # of each token of a completion, by `plain`
    sampled: dict[Ids, Completion]

    def logprob(self, ids: Ids, start: int = 0) -> Tensor:
        return self.logprobs[ids][start:].sum()

    def chance(self, ids: Ids, start: int = 0) -> float:
        """The probability of ids[start:] after ids[:start]."""
        return math.exp(self.logprob(ids, start).item())

    def expected(self, surrogate: Tensor) -> dict[str, Tensor]:
        weights = dict(self.plain.named_parameters())
        found = torch.autograd.grad(surrogate, list(weights.values()), retain_graph=True)
        return dict(zip(weights, found, strict=True))

    def actual(
        self, groups: Weighted, advantage: GroupAdvantage, aggregation: str, objective: str = "ppo_clip"
    ) -> dict[str, Tensor]:
        """The expectation of the trainer's gradient."""
        total = {name: torch.zeros_like(weight) for name, weight in self.plain.named_parameters()}
        loss = partial(policy_gradient_loss, objective=objective)
        trainer = Trainer(self.decoder, learning_rate=1.0, temperature=TEMPERATURE, loss=loss)
        for group, chance in groups:
            self.decoder.model.zero_grad()
            items = [(group, advantage.credit(group))]
            step = pack_step(items, max_tokens=64, aggregation=aggregation, max_new_tokens=LENGTH)
            trainer.forward_backward(step)
            for name, weight in self.decoder.model.named_parameters():
                if weight.grad is not None:
                    total[name] += chance * weight.grad
        return total


@pytest.fixture(scope="module")
def world() -> World:
    model = tiny_model("llama", vocab_size=PADDED)
    plain = copy.deepcopy(model).double().eval()
    laws: dict[Ids, Tensor] = {}
    for ids in completions():
        logits = plain(torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 : -1, :VOCAB]
        laws[ids] = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    decoder = Decoder(model, vocab_size=VOCAB)
    logprobs = {ids: law.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1) for ids, law in laws.items()}
    return World(decoder=decoder, plain=plain, logprobs=logprobs, sampled=led_to(decoder, laws))


def led_to(decoder: Decoder, laws: dict[Ids, Tensor]) -> dict[Ids, Completion]:
    """Returns each completion as the engine samples it when the uniform numbers are in its shares."""

    def middles(ids: Ids) -> list[float]:
        shares = laws[ids].detach().exp()
        rows = zip(shares, shares.cumsum(-1), ids, strict=True)
        return [(edges[token] - row[token] / 2).item() for row, edges, token in rows]

    class Chosen:
        def __init__(self, *, seed: int, request_id: str) -> None:
            self._draws = middles(tuple(map(int, request_id)))

        def at(self, position: int) -> float:
            return self._draws[position - len(PROMPT)]

    requests = [
        ask(
            "".join(map(str, ids)),
            PROMPT,
            max_tokens=LENGTH,
            temperature=TEMPERATURE,
            stop_ids=frozenset({STOP}),
        )
        for ids in laws
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnpoint.engine.sequence.Uniforms", Chosen)
        engine = TorchEngine(decoder, decode=str, context_length=CONTEXT)
        return dict(zip(laws, generate(engine, *requests), strict=True))


def make_group(world: World, first: Ids, second: Ids, *, fork: int | None = None) -> Group:
    """Returns two rollouts; with `fork` the second re-samples the first from that token on."""
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=list(PROMPT))
    members: list[Member] = []
    for index, ids in enumerate((first, second)):
        forked = fork if index else None
        done = world.sampled[ids]
        leaf = tree.append(
            parent=prompt if forked is None else prompt + 1,
            parent_length=forked,
            author=Author.POLICY,
            token_ids=done.token_ids[forked or 0 :],
            logprobs=done.logprobs[forked or 0 :],
            policy_version=0,
        )
        branch = None if forked is None else BranchOrigin(root=0, position=forked, rule="random", score=0.0)
        verdict = Verdict.scored(reward(ids))
        origin = branch or RootOrigin()
        members.append(
            Member(leaf=leaf, segments=(leaf,), text="", verdict=verdict, finish=done.finish, origin=origin)
        )
    task = Task(id="t", messages=(Message(role="user", content=""),), answer="")
    return Group(id="g", task=task, tree=tree.freeze(), members=tuple(members))


def test_the_engine_draws_each_completion_with_its_probability(world: World) -> None:
    total = 0.0
    for ids, completion in world.sampled.items():
        assert tuple(completion.token_ids.tolist()) == ids
        torch.testing.assert_close(
            torch.from_numpy(completion.logprobs.copy()).double(),
            world.logprobs[ids].detach(),
            atol=5e-6,
            rtol=0,
        )
        total += math.exp(completion.logprobs.sum(dtype=float))
    assert total == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("baseline", "shrunk"), [("leave_one_out", 1.0), ("mean", 0.5)])
def test_the_expected_gradient_of_a_group_is_that_of_the_expected_reward(
    world: World, baseline: str, shrunk: float
) -> None:
    """A mean that counts the rollout itself shrinks it by 1 - 1/G; the constant divides by the limit."""
    pairs = itertools.product(world.sampled, repeat=2)
    groups = [(make_group(world, *pair), world.chance(pair[0]) * world.chance(pair[1])) for pair in pairs]
    actual = world.actual(groups, GroupAdvantage(baseline=baseline), "constant")
    value = torch.stack([world.logprob(ids).exp() * reward(ids) for ids in world.sampled]).sum()
    assert relative_difference(actual, world.expected(-shrunk / LENGTH * value)) < 1e-5


@pytest.mark.parametrize(
    ("objective", "aggregation"),
    [
        ("ppo_clip", "token"),
        ("ppo_clip", "sequence"),
        ("ppo_clip", "constant"),
        ("gspo", "sequence"),
        ("cispo", "token"),
    ],
)
def test_the_expected_gradient_of_a_root_and_its_fork(world: World, objective: str, aggregation: str) -> None:
    """The fork re-samples its token, trains on what it sampled, and shares one group mean with its root.

    Ratios are 1 here, where all objectives agree.
    """
    groups: list[tuple[Group, float]] = []
    surrogate = torch.zeros((), dtype=torch.float64)
    for root, whole in itertools.product(world.sampled, repeat=2):
        fork = len(root) // 2
        if whole[:fork] != root[:fork]:
            continue
        chance = world.chance(root) * world.chance(whole, fork)
        groups.append((make_group(world, root, whole, fork=fork), chance))
        lengths = (len(root), len(whole) - fork)
        advantage = (reward(root) - reward(whole)) / 2
        for sign, ids, start, length in ((1, root, 0, lengths[0]), (-1, whole, fork, lengths[1])):
            share = {"token": 1 / sum(lengths), "sequence": 1 / (2 * length), "constant": 1 / (2 * LENGTH)}
            surrogate = surrogate - chance * sign * advantage * share[aggregation] * world.logprob(ids, start)
    actual = world.actual(groups, GroupAdvantage(), aggregation, objective)
    assert relative_difference(actual, world.expected(surrogate)) < 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {"objective": "ppo_clip", "dual_clip": 1.4},
        {"objective": "gspo", "clip_low": 0.02, "clip_high": 0.02},
        {"objective": "cispo"},
    ],
    ids=lambda options: options["objective"],
)
def test_where_a_group_is_cut_into_micro_batches_does_not_show(options: dict[str, Any]) -> None:
    """Also far from ratio 1: a rollout is never cut, so that its ratio is that of all its tokens."""
    model, decoder = tiny_model("llama"), tiny_decoder("llama")
    items = [make_item(shape, model=model, seed=seed) for seed, shape in enumerate(SHAPES.values())]
    trainer = Trainer(decoder, learning_rate=1.0, loss=partial(policy_gradient_loss, **options))
    found: list[tuple[float | None, dict[str, Tensor]]] = []
    for max_tokens in (10_000, 40, 20):
        decoder.model.zero_grad()
        step = pack_step(items, max_tokens=max_tokens, aggregation="sequence", max_new_tokens=16)
        metrics = trainer.forward_backward(step)
        found.append(
            (metrics["clip_fraction"].value, {n: g.clone() for n, g in gradients(decoder.model).items()})
        )
    (clipped, whole), *cut = found
    assert clipped is not None
    assert 0.05 < clipped < 0.95
    for same, parts in cut:
        assert same == pytest.approx(clipped)
        assert relative_difference(parts, whole) < 1e-5
