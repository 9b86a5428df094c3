"""Groups of several shapes with random tokens and credits, and their loss computed the plain way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from tests.tiny import tiny_decoder
from turnpoint.metrics import Metrics
from turnpoint.training import PackedStep, Trainer, pack_step
from turnpoint.types import (
    Author,
    FinishReason,
    Group,
    Member,
    Message,
    Segment,
    SegmentCredit,
    Task,
    TeacherTargets,
    TokenTree,
    Verdict,
    float_array,
    token_array,
)

P, A, E = Author.PROMPT, Author.POLICY, Author.ENVIRONMENT
Item: TypeAlias = tuple[Group, list[SegmentCredit]]
LOW, HIGH = 0.2, 0.28  # default clips


@dataclass(frozen=True)
class Shape:
    """Segments as (parent, parent_length, author, tokens) and members as the segments they own."""

    segments: tuple[tuple[int | None, int, Author, int], ...]
    members: tuple[tuple[int, ...], ...]


FLAT = Shape(
    segments=((None, 0, P, 6), (0, 6, A, 5), (0, 6, A, 1), (0, 6, A, 12), (0, 6, A, 3)),
    members=((1,), (2,), (3,), (4,)),
)
FORKED = Shape(  # two roots; forks inside them, of a fork, at the very start and after the very end
    segments=(
        (None, 0, P, 4),
        (0, 4, A, 12),
        (0, 4, A, 7),
        (1, 5, A, 6),
        (3, 2, A, 4),
        (1, 0, A, 3),
        (2, 7, A, 2),
        (1, 11, A, 9),
    ),
    members=((1,), (2,), (3,), (4,), (5,), (6,), (7,)),
)
TURNS = Shape(  # two episodes of two turns; one forks inside its first action and acts once more
    segments=(
        (None, 0, P, 5),
        (0, 5, A, 4),
        (1, 4, E, 3),
        (2, 3, A, 5),
        (0, 5, A, 2),
        (4, 2, E, 9),
        (5, 9, A, 3),
        (1, 2, A, 3),
        (7, 3, E, 2),
        (8, 2, A, 2),
    ),
    members=((1, 3), (4, 6), (7, 9)),
)
SHAPES = {"flat": FLAT, "forked": FORKED, "turns": TURNS}


def make_group(
    shape: Shape, *, seed: int = 0, vocab: int = 60, invalid: Sequence[int] = (), name: str = "g"
) -> Group:
    """Returns a group of `shape` with random ids and log-probabilities; members `invalid` have no verdict."""
    rng = np.random.default_rng(seed)  # ids from 1: 0 is padding, whose embedding has no gradient by design
    segments = [
        Segment(
            id=index,
            parent=parent,
            parent_length=parent_length,
            author=author,
            token_ids=token_array(rng.integers(1, vocab, count)),
            logprobs=float_array(-rng.exponential(2.0, count)) if author is A else None,
            policy_version=0 if author is A else None,
        )
        for index, (parent, parent_length, author, count) in enumerate(shape.segments)
    ]
    members = [
        Member(
            leaf=owned[-1],
            segments=owned,
            text="",
            verdict=Verdict.invalid("timed out") if index in invalid else Verdict.scored(1.0),
            finish=FinishReason.STOP,
        )
        for index, owned in enumerate(shape.members)
    ]
    return Group(
        id=name,
        task=Task(id=name, messages=(Message(role="user", content=""),), answer=""),
        tree=TokenTree(segments=tuple(segments)),
        members=tuple(members),
    )


def make_credits(group: Group, *, seed: int = 0, holes: bool = True) -> list[SegmentCredit]:
    """Returns random advantages, and weights of which some are 0 if `holes`, for every POLICY segment."""
    rng = np.random.default_rng(seed)
    weights = [0.0, 0.5, 1.0, 2.0] if holes else [1.0]
    return [
        SegmentCredit(
            segment=segment.id,
            advantages=float_array(rng.normal(size=len(segment))),
            weights=float_array(rng.choice(weights, size=len(segment))),
        )
        for segment in group.tree.segments
        if segment.author is A
    ]


def make_item(shape: Shape, *, model: Any, seed: int = 0, invalid: Sequence[int] = ()) -> Item:
    """Returns a group and its credits; old log-probabilities are near those of `model`, some beyond clips."""
    group = sampled_by(model, make_group(shape, seed=seed, invalid=invalid, name=f"g{seed}"), seed=seed)
    return group, make_credits(group, seed=seed + 1)


@torch.no_grad()
def sampled_by(
    model: Any, group: Group, *, seed: int = 0, noise: float = 0.15, temperature: float = 1.0
) -> Group:
    """Returns `group` with log-probabilities that `model` gives, plus noise."""
    rng = np.random.default_rng(seed)
    segments: list[Segment] = []
    for segment in group.tree.segments:
        if segment.author is A:
            ids = group.tree.path_ids(segment.id)
            exact = row_logprobs(model, ids, temperature)[len(ids) - len(segment) - 1 :].numpy()
            segment = replace(segment, logprobs=float_array(exact + noise * rng.normal(size=len(segment))))
        segments.append(segment)
    return replace(group, tree=TokenTree(segments=tuple(segments)))


def row_logprobs(model: Any, ids: Any, temperature: float = 1.0) -> Tensor:
    """Returns log p(ids[1:] | before), [n - 1], by transformers' own forward of one plain row."""
    row = torch.tensor(np.asarray(ids), dtype=torch.long).unsqueeze(0)
    laws = torch.log_softmax(model(input_ids=row, use_cache=False).logits[0].float() / temperature, dim=-1)
    return laws[:-1].gather(-1, row[0, 1:, None]).squeeze(-1)


def plain_loss(
    model: Any, items: Sequence[Item], *, aggregation: str = "token", max_new_tokens: int = 16
) -> Tensor:
    """Returns the loss of a step from one row per member and one Python loop over their tokens."""
    rows = [row for group, credits in items for row in _rows(model, group, credits)]
    total = torch.zeros(())
    for terms in rows:
        share = sum(terms, torch.zeros(()))
        total = total + (share / len(terms) if aggregation == "sequence" else share)
    denominators = {
        "token": sum(len(terms) for terms in rows),
        "sequence": len(rows),
        "constant": len(rows) * max_new_tokens,
    }
    return total / denominators[aggregation]


def _rows(model: Any, group: Group, credits: Sequence[SegmentCredit]) -> list[list[Tensor]]:
    by_segment = {credit.segment: credit for credit in credits}
    rows: list[list[Tensor]] = []
    for member in group.members:
        if not member.verdict.valid:
            continue
        logprobs = row_logprobs(model, group.tree.path_ids(member.leaf))
        terms: list[Tensor] = []
        start = 0
        for piece in group.tree.path(member.leaf):
            if piece.segment.id in member.segments:
                credit = by_segment[piece.segment.id]
                terms += _token_terms(piece.segment, credit, logprobs[start - 1 : start - 1 + piece.length])
            start += piece.length
        if terms:
            rows.append(terms)
    return rows


def _token_terms(segment: Segment, credit: SegmentCredit, logprobs: Tensor) -> list[Tensor]:
    assert segment.logprobs is not None
    assert credit.advantages is not None
    terms: list[Tensor] = []
    for index, weight in enumerate(credit.weights.tolist()):
        if weight:
            ratio = (logprobs[index] - float(segment.logprobs[index])).exp()
            advantage = float(credit.advantages[index])
            clipped = ratio.clamp(1 - LOW, 1 + HIGH)
            terms.append(-weight * torch.minimum(ratio * advantage, clipped * advantage))
    return terms


def pack(items: Sequence[Item], *, max_tokens: int = 10_000, aggregation: str = "token") -> PackedStep:
    """Returns `items` packed with the tests' defaults."""
    return pack_step(items, max_tokens=max_tokens, aggregation=aggregation, max_new_tokens=16)


def packed_gradients(step: PackedStep, architecture: str = "llama") -> tuple[Metrics, dict[str, Tensor]]:
    """Returns metrics and gradients of one pass over `step` on a fresh tiny model."""
    decoder = tiny_decoder(architecture)
    trainer = Trainer(decoder, learning_rate=1e-3, head_chunk_tokens=7)
    metrics = trainer.forward_backward(step)
    return metrics, gradients(decoder.model)


def gradients(model: Any) -> dict[str, Tensor]:
    """Returns the gradients of a model by name."""
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def relative_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Returns |left - right| / |right| over all gradients together."""
    assert left.keys() == right.keys()
    difference = sum(float((left[name] - right[name]).square().sum()) for name in right)
    return (difference / sum(float(grad.square().sum()) for grad in right.values())) ** 0.5


def with_teacher(credit: SegmentCredit, *, coef: float, seed: int = 0) -> SegmentCredit:
    """Returns `credit` with a random teacher."""
    logprobs = float_array(-np.random.default_rng(seed).exponential(2.0, len(credit.weights)))
    return replace(credit, teacher=TeacherTargets(logprobs=logprobs, coef=coef))


def renumbered(item: Item, *, segments: Sequence[Segment], members: Sequence[Member]) -> Item:
    """Returns the group made of `segments`, whose ids may be any, and the credits that still apply."""
    group, credits = item
    new_id = {segment.id: index for index, segment in enumerate(segments)}
    tree = TokenTree(
        segments=tuple(
            replace(it, id=new_id[it.id], parent=None if it.parent is None else new_id[it.parent])
            for it in segments
        )
    )
    kept = tuple(
        replace(it, leaf=new_id[it.leaf], segments=tuple(new_id[owned] for owned in it.segments))
        for it in members
    )
    moved = [replace(it, segment=new_id[it.segment]) for it in credits if it.segment in new_id]
    return replace(group, tree=tree, members=kept), moved


def sliced(segment: Segment, part: slice) -> Segment:
    """Returns `segment` with some of its tokens."""
    logprobs = None if segment.logprobs is None else segment.logprobs[part]
    return replace(segment, token_ids=segment.token_ids[part], logprobs=logprobs)


def sliced_credit(credit: SegmentCredit, part: slice) -> SegmentCredit:
    """Returns `credit` for some of its segment's tokens."""
    return replace(credit, weights=credit.weights[part], advantages=given(credit)[part])


def given(credit: SegmentCredit) -> Any:
    """Returns advantages that are known to be there, [n]."""
    assert credit.advantages is not None
    return credit.advantages


def listed(tensor: Tensor) -> list[Any]:
    """Returns the elements of a 1-D tensor."""
    return cast("list[Any]", tensor.tolist())
