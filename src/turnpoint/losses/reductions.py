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

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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


def reduce_tokens(
    terms: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"],
    denominator: float,
    weights: Float[Tensor, "*tokens"] | None,
) -> Float[Tensor, ""]:
    """Returns sum of weights * terms over unmasked tokens / denominator, differentiable in `terms` alone.

    The one way in which every loss here is averaged, so that two of them can be added. `terms` must be 0
    at masked positions, selected before any arithmetic: 0 * NaN would survive, in the backward pass too.
    `weights`, None for 1, may hold anything there. Where nothing trains the loss is 0, its denominator
    may be 0. Raises ValueError for one that is negative, not finite, or 0 although tokens train.
    """
    if not 0 <= denominator < math.inf or (denominator == 0 and bool(mask.any())):
        raise ValueError(
            f"denominator {denominator} for {int(mask.sum())} trained tokens; it must be positive"
        )
    if weights is not None:
        terms = terms * torch.where(mask, weights.detach(), 0.0)
    return terms.sum() / (denominator or 1.0)
