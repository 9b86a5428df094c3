"""Figures of a step's rollouts, taken from the groups as they were sampled, before any mask or credit.

Lengths are raw; what is invalid is left out of rewards and counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnpoint.credit.overlong import completion_length, is_truncated
from turnpoint.metrics import Max, Mean, Metric, Quantile, Sum
from turnpoint.reports.branching_metrics import branching_metrics
from turnpoint.rollout.evaluate import SOLVED
from turnpoint.types import Group, TokenKind
from turnpoint.verifiers.unjudged import UNJUDGED

SLOWEST_VERIFY = "slowest_verify"  # the key in Account.seconds; a largest, not a part of the sum


def rollout_metrics(groups: Sequence[Group]) -> dict[str, Metric]:
    """Returns what the groups of a step show.

    reward, solved (share with reward >= 1), reward/PART: means over valid rollouts that somebody judged.
    signal: share of their groups whose valid rewards differ. invalid, truncated: shares of all rollouts.
    length: mean tokens of a whole completion; length/max; length/finished: median of those not truncated.
    tokens/KIND: what was paid, by `TokenKind`; of groups that fork every kind, also what is 0.
    cache_hit: share read from the prefix cache of the tokens in prompts and kept prefixes, and in the prompts
    under which roots are scored.
    slowest_verify: seconds. Those of `branching_metrics` for groups that fork.
    """
    pairs = [(group, member) for group in groups for member in group.members]
    members = [member for _, member in pairs]
    judged = [group for group in groups if any(it.verdict != UNJUDGED for it in group.members)]
    rewards = [reward for group in judged for reward in valid_rewards(group)]
    lengths = [completion_length(group, member) for group, member in pairs]
    finished = [length for length, member in zip(lengths, members, strict=True) if not is_truncated(member)]
    slowest = [group.account.seconds.get(SLOWEST_VERIFY) for group in groups]
    metrics: dict[str, Metric] = {
        "reward": Mean.of(rewards),
        "solved": Mean.of(reward >= SOLVED for reward in rewards),
        "signal": Mean.of(has_signal(group) for group in judged),
        "invalid": Mean.of(not member.verdict.valid for member in members),
        "truncated": Mean.of(map(is_truncated, members)),
        "length": Mean.of(lengths),
        "length/max": Max.of(lengths),
        "length/finished": Quantile(0.5, tuple(finished)),
        SLOWEST_VERIFY: Max.of(seconds for seconds in slowest if seconds is not None),
    }
    for name in sorted({name for member in members for name in member.verdict.parts}):
        valid = [member.verdict.parts for member in members if member.verdict.valid]
        metrics[f"reward/{name}"] = Mean.of(parts[name] for parts in valid if name in parts)
    return {**metrics, **_paid(groups), **branching_metrics(groups)}


def _paid(groups: Sequence[Group]) -> dict[str, Metric]:
    forks = any(member.insight is not None for group in groups for member in group.members)
    kinds = set(TokenKind) if forks else {kind for group in groups for kind in group.account.tokens}
    totals = {kind: sum(group.account.tokens.get(kind, 0) for group in groups) for kind in sorted(kinds)}
    cached, prefilled = totals.get(TokenKind.CACHED, 0), totals.get(TokenKind.PROMPT, 0)
    return {
        **{f"tokens/{kind}": Sum(total) for kind, total in totals.items()},
        "cache_hit": Mean(cached, cached + prefilled),
    }


def valid_rewards(group: Group) -> list[float]:
    """Returns the rewards of the group's valid members, in order."""
    verdicts = [member.verdict for member in group.members]
    return [verdict.reward for verdict in verdicts if verdict.valid and verdict.reward is not None]


def has_signal(group: Group) -> bool:
    """Whether the valid rewards of the group differ: without a penalty on length, whether it teaches."""
    return len(set(valid_rewards(group))) > 1
