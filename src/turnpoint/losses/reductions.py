"""How tokens are averaged: one factor per sequence and one denominator for the whole optimiser step.

    loss = sum over sequences of factor * (sum over their tokens) / denominator

    aggregation  factor      denominator
    token        1           all trained tokens         every token counts the same (DAPO, 2503.14476)
    sequence     1 / length  sequences with tokens      every rollout counts the same (GRPO, 2402.03300)
    constant     1           sequences * max_tokens     no length bias (Dr. GRPO, 2503.20783)

Both are counted over the step, after every mask and before it is split: a micro-batch that divides by its
own tokens changes the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

AGGREGATIONS = ("token", "sequence", "constant")


def sequence_weights(
    *, lengths: Sequence[int], aggregation: str, max_tokens: int
) -> tuple[list[float], float]:
    """Returns the factor of each sequence of the step, and the step's denominator.

    `lengths` are trained tokens per sequence; `max_tokens` (read by `constant` only) is the longest a
    sequence can be. Under `sequence` one without trained tokens has factor 0 and is not counted.
    Raises ValueError for an unknown aggregation.
    """
    match aggregation:
        case "token":
            return [1.0] * len(lengths), float(sum(lengths))
        case "sequence":
            return [1.0 / n if n else 0.0 for n in lengths], float(sum(n > 0 for n in lengths))
        case "constant":
            return [1.0] * len(lengths), float(len(lengths) * max_tokens)
        case _:
            raise ValueError(f"unknown aggregation {aggregation!r}; known: {', '.join(AGGREGATIONS)}")
