"""Whether three ways to one law agree on the live model: engine, trainer, and a prefill without any cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from turnpoint.diagnosis.checks import Check, failed, ok
from turnpoint.diagnosis.rows import all_credits
from turnpoint.engine.engine import TorchEngine
from turnpoint.protocols import ScoreRequest
from turnpoint.reports.text import number, plural
from turnpoint.rollout.concurrency import all_of
from turnpoint.training.packing import pack_step
from turnpoint.training.step import Trainer
from turnpoint.types import Floats, Group, Member, TokenIds, Verdict, float_array

_MOST_TOKENS = 512  # sampled tokens that are compared
_MOST_FORKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """|difference| of log-probabilities over `count` tokens, nats; NaN where one is not finite."""

    count: int
    mean: float
    largest: float


def difference(left: Floats, right: Floats) -> Difference:
    """Returns how far two readings of the same tokens, [n] each, are apart."""
    gaps = np.abs(left.astype(np.float64) - right.astype(np.float64))
    return Difference(count=len(gaps), mean=float(gaps.mean()), largest=float(gaps.max()))


def check_logprobs(
    groups: Sequence[Group], trainer: Trainer, *, tolerance: float, device: torch.device
) -> Check:
    """Engine against trainer, on sampled rollouts as they are packed for training; mean above refuses."""
    some = first_tokens(groups, _MOST_TOKENS)
    packed = pack_step(
        [(group, all_credits(group)) for group in some],
        max_tokens=2 * _MOST_TOKENS,
        aggregation="token",
        max_new_tokens=1,  # scales the loss, which is not computed
        device=device,
    )
    trained = torch.cat([trainer.logprobs(tree) for tree in packed.trees])
    sampled = torch.cat([tree.old_logprobs for tree in packed.trees])
    gap = difference(float_array(sampled.float().cpu()), float_array(trained.float().cpu()))
    return _judged("log-probabilities", "engine and trainer", gap, tolerance, "sampled tokens")


def first_tokens(groups: Sequence[Group], most: int) -> list[Group]:
    """Returns groups of the first rollouts, up to about `most` sampled tokens, none of them left out.

    Packing leaves out what a verifier could not judge; here every rollout counts as judged.
    """
    chosen: list[Group] = []
    for group in groups:
        taken = 0
        while taken < len(group.members) and most > 0:
            most -= group.num_generated(taken)
            taken += 1
        members = tuple(replace(it, verdict=Verdict.scored(0.0)) for it in group.members[:taken])
        if members:
            chosen.append(_only(group, members))
    return chosen


def _only(group: Group, members: tuple[Member, ...]) -> Group:
    """A group of roots with its first members alone; their segments come first."""
    segments = group.tree.segments[: 1 + len(members)]
    return replace(group, tree=replace(group.tree, segments=segments), members=members)


async def check_forks(
    groups: Sequence[Group], engine: TorchEngine, fresh: TorchEngine, *, temperature: float, tolerance: float
) -> Check:
    """A fork in the middle of a rollout: from what `engine` has cached, and by `fresh`, which caches nothing.

    The fork goes on with the tokens of a sibling, so that only its trunk can come from the cache.
    """
    forks = [fork for group in groups if (fork := _fork(group)) is not None][:_MOST_FORKS]
    if not forks:
        return ok("forks", "not tried: every sampled rollout is a single token")
    before = engine.stats.cached
    requests = [
        ScoreRequest(id=f"fork/{index}", token_ids=ids, start=start, temperature=temperature)
        for index, (ids, start) in enumerate(forks)
    ]
    cached = await all_of(engine.score(request) for request in requests)
    read = engine.stats.cached - before
    plain = await all_of(fresh.score(request) for request in requests)
    gap = difference(
        float_array(np.concatenate([scores.logprobs for scores in cached])),
        float_array(np.concatenate([scores.logprobs for scores in plain])),
    )
    what = f"{plural(len(forks), 'fork')} with {number(read)} tokens from the cache, and a fresh prefill"
    return _judged("forks", what, gap, tolerance, "tokens after the fork")


def _fork(group: Group) -> tuple[TokenIds, int] | None:
    """Returns the ids of a fork in the middle of the group's longest rollout, and where it begins."""
    leaves = [member.leaf for member in group.members]
    trunk = max(leaves, key=lambda leaf: len(group.tree.segments[leaf]))
    half = len(group.tree.segments[trunk]) // 2
    if half == 0:
        return None
    other = next((leaf for leaf in leaves if leaf != trunk), trunk)
    before = group.tree.path_ids(trunk, half)
    return np.concatenate([before, group.tree.segments[other].token_ids]), len(before)


def _judged(name: str, what: str, gap: Difference, tolerance: float, tokens: str) -> Check:
    figures = (
        f"mean |difference| {number(gap.mean)}, largest {number(gap.largest)} nats over {number(gap.count)} "
        f"{tokens}; training.mismatch_tolerance = {tolerance:g}"
    )
    if gap.mean <= tolerance:  # false for NaN
        return ok(name, f"{what} agree: {figures}")
    return failed(name, f"{what} disagree: {figures}; try model.dtype=float32")
