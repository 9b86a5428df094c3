"""How much of a change in tokens a round goes with the policy's entropy (arXiv 2606.12370, Eq. 16).

    L_t - L_0 = b (H_t - H_0) + rest,      b: least squares over the first third of the steps

The rest is called drift of policy against heads. That is so only if nothing had drifted in those first steps
and their entropies differ, for b is estimated there: where they do not, nothing is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from turnpoint.reports.draft_metrics import ACCEPT_LENGTH
from turnpoint.reports.finding import Finding

_LEAST_STEPS = 12
_SPREAD = 0.02  # nats, standard deviation of the first entropies


def draft_trend(history: Sequence[Mapping[str, float]]) -> Finding | None:
    """Returns the two parts of the change from the first third of the steps with drafts to the last."""
    points = [(it["entropy"], it[ACCEPT_LENGTH]) for it in history if {"entropy", ACCEPT_LENGTH} <= it.keys()]
    if len(points) < _LEAST_STEPS:
        return None
    third = len(points) // 3
    early, late = points[:third], points[-third:]
    if statistics.pstdev(entropy for entropy, _ in early) < _SPREAD:
        return None
    slope = statistics.linear_regression(*zip(*early, strict=True)).slope
    (entropy, length), (entropy_then, length_then) = (
        [statistics.fmean(column) for column in zip(*part, strict=True)] for part in (early, late)
    )
    explained = slope * (entropy_then - entropy)
    rest = length_then - length - explained
    return Finding(
        rule="draft_trend",
        text=f"drafts: tokens a round went from {length:.2f} to {length_then:.2f}; {explained:+.2f} of it "
        f"goes with entropy ({entropy:.2f} to {entropy_then:.2f} nats, {slope:+.2f} per nat in the first "
        f"{third} steps), {rest:+.2f} with drift if there was none in those steps",
        warning=False,
    )
