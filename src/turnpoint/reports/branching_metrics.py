"""Figures of groups that fork: where, how far apart, how different what came of it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from turnpoint.metrics import Mean, Metric, Sum
from turnpoint.types import BranchOrigin, Group, Insight, Member, RootOrigin

AGREEMENT = "branching/agreement"
KEPT = "branching/kept"
REFLECT, SCORE = "seconds/reflect", "seconds/score"
EXAMINATION_SHARE = "seconds/examination_share"


def branching_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """Returns what the groups of a step show; empty where no root was examined.

    branching/depth: mean position of a continuation's point, as a share of its root. branching/points: those
    found of those asked for. branching/agreement: share of reflections whose OUTCOME is the verifier's.
    branching/set_aside: share of roots where another rule decided, or none. branching/redrawn: share of
    continuations whose first token is the root's again. branching/spread: mean variance of rewards within a
    point, its root included. branching/kept: tokens of roots that continuations begin with.
    branching/fresh: continuations that began at the prompt.
    branching/score: mean score of points, in the rule's unit.
    seconds/reflect, seconds/score: what reflections and scoring took, from asking to answer, summed over
    roots; these overlap, so that neither is a part of the step's wall time. seconds/examination_share: both,
    as a share of the time from a group's start to its last completion, summed over roots alike.
    """
    seen = [(group, it, it.insight) for group in groups for it in group.members if it.insight is not None]
    if not seen:
        return {}
    insights = [insight for _, _, insight in seen]
    forks = [(group, it, it.origin) for group in groups for it in group.members]
    branches = [(group, it, origin) for group, it, origin in forks if isinstance(origin, BranchOrigin)]
    return {
        "branching/depth": Mean.of(
            origin.position / group.num_generated(origin.root) for group, _, origin in branches
        ),
        "branching/points": Mean(sum(it.found for it in insights), sum(it.asked for it in insights)),
        AGREEMENT: Mean.of(it.agrees for it in insights if it.agrees is not None),
        "branching/set_aside": Mean.of(bool(it.set_aside) for it in insights),
        "branching/redrawn": Mean.of(_redrawn(group, it, origin) for group, it, origin in branches),
        "branching/spread": Mean.of(_spreads(groups)),
        KEPT: Sum(sum(origin.position for _, _, origin in branches)),
        "branching/fresh": Sum(sum(_fresh(group) for group in groups)),
        "branching/score": Mean.of(origin.score for _, _, origin in branches),
        **_seconds(groups),
    }


def _seconds(groups: Sequence[Group]) -> dict[str, Metric]:
    reflect, score = (
        sum(it.account.seconds.get(name, 0.0) for it in groups) for name in ("reflect", "score")
    )
    whole = sum(
        it.account.seconds.get("generate", 0.0) * sum(member.insight is not None for member in it.members)
        for it in groups
    )
    return {REFLECT: Sum(reflect), SCORE: Sum(score), EXAMINATION_SHARE: Mean(reflect + score, whole)}


def agreement(groups: Sequence[Group]) -> float | None:
    """Returns the share of reflections that agree with the verifier; None without one."""
    said = [it.agrees for it in _insights(groups) if it.agrees is not None]
    return sum(said) / len(said) if said else None


def _insights(groups: Sequence[Group]) -> Iterator[Insight]:
    return (it.insight for group in groups for it in group.members if it.insight is not None)


def _redrawn(group: Group, member: Member, origin: BranchOrigin) -> bool:
    root = [token for segment in group.generated(origin.root) for token in segment.token_ids.tolist()]
    first = group.tree.segments[member.segments[0]].token_ids[0]
    return root[origin.position] == int(first)


def _spreads(groups: Sequence[Group]) -> Iterator[float]:
    for group in groups:
        points: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        for member in group.members:
            if isinstance(member.origin, BranchOrigin) and member.verdict.reward is not None:
                points[member.origin.root, member.origin.position].append(member.verdict.reward)
        for (root, _), rewards in points.items():
            own = group.members[root].verdict.reward
            rewards += [] if own is None else [own]
            mean = sum(rewards) / len(rewards)
            yield sum((reward - mean) ** 2 for reward in rewards) / len(rewards)


def _fresh(group: Group) -> int:
    """Rollouts from the prompt that no rule looked at, in a group that forks."""
    whole = [it for it in group.members if isinstance(it.origin, RootOrigin)]
    return sum(it.insight is None for it in whole) if any(it.insight for it in whole) else 0
