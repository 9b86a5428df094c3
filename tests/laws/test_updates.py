"""Laws: at every update on a batch, not only the first, the gradient is that of the equations.

Objective, aggregation, importance weights and KL term together: four updates over two mini-batches, each
against a loop over plain rows in float64 with the weights of that moment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_decoder, tiny_model
from tests.training.groups import (
    FLAT,
    FORKED,
    TURNS,
    A,
    Item,
    make_credits,
    make_group,
    relative_difference,
    sampled_by,
)
from turnpoint.losses import policy_gradient_loss
from turnpoint.training import Trainer, pack_step
from turnpoint.training.prepare import Correction, Preparation
from turnpoint.training.reference import Law, ModelReference
from turnpoint.training.step import Pull
from turnpoint.types import Group, SegmentCredit, float_array

TEMPERATURE, LONGEST = 0.8, 30
CLIPS = {  # narrow: many are outside
    "ppo_clip": (0.05, 0.08),
    "gspo": (0.07, 0.1),
    "cispo": (0.1, 0.08),
    "reinforce": (1.0, 0.08),
}
CAP, COEF, DUAL = 1.2, 0.3, 1.5


@dataclass(frozen=True)
class Case:
    """What one run is trained by."""

    objective: str
    aggregation: str
    level: str | None  # of the importance weights
    divergence: str | None

    def __str__(self) -> str:
        return f"{self.objective} {self.aggregation} {self.level} {self.divergence}"

    @property
    def dual(self) -> float | None:
        return DUAL if self.objective == "ppo_clip" and self.level is None else None


CASES = [
    Case(objective, aggregation, level, divergence)
    for (objective, shift), (index, aggregation) in itertools.product(
        zip(CLIPS, range(len(CLIPS)), strict=True), enumerate(["token", "sequence", "constant"])
    )
    for level, divergence in [
        (
            [None, "token", "sequence"][(index + shift) % 3],
            [None, "reverse", "forward"][(index + 2 * shift) % 3],
        )
    ]
]


@dataclass(frozen=True)
class Token:
    """A trained token of a row: p(row[at + 1] | before)."""

    at: int
    sampled: float
    advantage: float
    weight: float


def make_batch(model: Any) -> list[Item]:
    """Returns groups with one advantage per segment, some of them 0, an invalid member and weights of 0."""
    batch: list[Item] = []
    for seed, (shape, invalid) in enumerate([(FLAT, [1]), (FORKED, [3]), (TURNS, [])]):
        group = make_group(shape, seed=seed, invalid=invalid, name=f"g{seed}")
        group = sampled_by(model, group, seed=seed, temperature=TEMPERATURE)
        credits = [
            SegmentCredit(
                segment=credit.segment,
                weights=credit.weights,
                advantages=float_array(np.full(len(credit.weights), 0.4 * ((3 * index) % 5 - 2))),
            )
            for index, credit in enumerate(make_credits(group, seed=seed + 1))
        ]
        batch.append((group, credits))
    return batch


def rows(items: Sequence[Item]) -> Iterator[tuple[Any, list[Token]]]:
    """Yields the ids and the trained tokens of every valid member that has some."""
    for group, credits in items:
        by_segment = {credit.segment: credit for credit in credits}
        for member in group.members:
            tokens = list(_tokens(group, by_segment, member.leaf, member.segments))
            if member.verdict.valid and tokens:
                yield group.tree.path_ids(member.leaf), tokens


def _tokens(
    group: Group, credits: Mapping[int, SegmentCredit], leaf: int, owned: Sequence[int]
) -> Iterator[Token]:
    start = 0
    for piece in group.tree.path(leaf):
        segment = piece.segment
        if segment.author is A and segment.id in owned:
            credit = credits[segment.id]
            assert segment.logprobs is not None
            assert credit.advantages is not None
            columns = zip(segment.logprobs, credit.advantages, credit.weights, strict=True)
            for index, (sampled, advantage, weight) in enumerate(columns):
                if weight:
                    yield Token(start + index - 1, float(sampled), float(advantage), float(weight))
        start += piece.length


def exact(weights: Mapping[str, Tensor]) -> Any:
    """Returns a plain float64 model with copies of `weights`."""
    model = tiny_model().double().eval()
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    return model


def logprobs(model: Any, ids: Any) -> Tensor:
    row = torch.tensor(np.asarray(ids), dtype=torch.long)
    laws = (model(input_ids=row[None], use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1)
    return laws[:-1].gather(-1, row[1:, None]).squeeze(-1)


def equations(case: Case, items: Sequence[Item], *, now: Any, start: Any, reference: Any) -> Tensor:
    """Returns the loss of one update, differentiable in the weights of `now`."""
    found = list(rows(items))
    count = sum(len(tokens) for _, tokens in found)
    denominators = {"token": count, "sequence": len(found), "constant": len(found) * LONGEST}
    total = torch.zeros((), dtype=torch.float64)
    for ids, tokens in found:
        current = logprobs(now, ids)
        ours, before, towards = (
            it.detach() for it in (current, logprobs(start, ids), logprobs(reference, ids))
        )
        sampled = [token.sampled for token in tokens]
        old = sampled if case.level is None else [float(before[token.at]) for token in tokens]
        gaps = [mine - theirs for mine, theirs in zip(old, sampled, strict=True)]
        factor = 1 / len(tokens) if case.aggregation == "sequence" else 1
        mean = sum(float(ours[token.at]) - it for token, it in zip(tokens, old, strict=True)) / len(tokens)
        for token, of_old, gap in zip(tokens, old, gaps, strict=True):
            logprob = current[token.at]
            weight = (
                factor * token.weight * min(CAP, math.exp(sum(gaps) if case.level == "sequence" else gap))
            )
            term = -_surrogate(case, logprob, of_old, mean, token.advantage)
            if case.divergence is not None:
                term = term + COEF * _pull(case.divergence, logprob, of_old, float(towards[token.at]))
            total = total + weight * term
    return total / denominators[case.aggregation]


def _surrogate(case: Case, logprob: Tensor, old: float, mean: float, advantage: float) -> Tensor:
    low, high = CLIPS[case.objective]
    ratio = (logprob - old).exp()
    if case.objective in ("cispo", "reinforce"):
        return ratio.detach().clamp(1 - low, 1 + high) * advantage * logprob
    if case.objective == "gspo":
        ratio = math.exp(mean) * (logprob - logprob.detach()).exp()
    clipped = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return clipped.clamp(min=case.dual * advantage) if case.dual and advantage < 0 else clipped


def _pull(divergence: str, logprob: Tensor, old: float, reference: float) -> Tensor:
    gap = logprob - reference
    estimate = gap**2 / 2 if divergence == "reverse" else (-gap).exp() - 1 + gap
    return (logprob.detach() - old).exp() * estimate


@pytest.mark.parametrize("budget", [20, 1000])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_update_has_the_gradient_of_the_equations(case: Case, budget: int) -> None:
    batch, decoder, other = make_batch(tiny_model().eval()), tiny_decoder(), tiny_decoder(seed=3)
    low, high = CLIPS[case.objective]
    trainer = Trainer(
        decoder,
        learning_rate=1e-4,
        temperature=TEMPERATURE,
        loss=partial(
            policy_gradient_loss,
            objective=case.objective,
            clip_low=low,
            clip_high=high,
            dual_clip=case.dual,
        ),
        pull=None if case.divergence is None else Pull(coef=COEF, divergence=case.divergence),
        head_chunk_tokens=11,
    )
    prepare = Preparation(
        logprobs=trainer.logprobs,
        reference=None
        if case.divergence is None
        else ModelReference(decoder=other, law=Law(temperature=TEMPERATURE, chunk=9)),
        correction=None if case.level is None else Correction(cap=CAP, level=case.level),
    )
    parts = [batch[:2], batch[2:]]
    pack = partial(pack_step, max_tokens=budget, aggregation=case.aggregation, max_new_tokens=LONGEST)
    packs = [prepare(pack(part, every_rollout=case.divergence is not None))[0] for part in parts]
    start, reference = (exact(it.model.state_dict()) for it in (decoder, other))
    for update in (0, 1, 0, 1):
        now = exact(decoder.model.state_dict())
        loss = equations(case, parts[update], now=now, start=start, reference=reference)
        loss.backward()
        metrics = trainer.forward_backward(packs[update])
        expected = {name: it.grad for name, it in now.named_parameters() if it.grad is not None}
        assert metrics["loss"].value == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-5)
        assert relative_difference(trainer.gradients(), expected) < 1e-4
        trainer.optim_step()
