"""Truncated importance weights: rollouts of one law, trained as if drawn from another.

    level     w of token t
    token     min(p_old(y_t) / p_behaviour(y_t), cap)
    sequence  min(product over its sequence's unmasked tokens of that ratio, cap)

The behaviour policy is what really sampled (an engine that rounds differently, older weights); p_old is
the trainer's own law before its update, which the policy loss compares with (IMPALA, arXiv 1802.01561, at
the token level). The product is the exact ratio of whole rollouts, and its spread grows with their
length: look at `effective_sample_size`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.losses.sequences import sequence_sums
from turnpoint.metrics import EffectiveShare, Mean, Metric

LEVELS = ("token", "sequence")


def truncated_weights(
    *,
    old_logprobs: Float[Tensor, "*tokens"],
    behaviour_logprobs: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    cap: float = 2.0,
    level: str = "token",
    sequence_ids: Int[Tensor, "*tokens"] | None = None,
) -> tuple[Float[Tensor, "*tokens"], dict[str, Metric]]:
    """Returns the weights, detached, 0 at masked positions, and how much they take away.

    Log-probabilities are in nats, of the same token at the same temperature. Multiply the weights into
    those of the loss and leave its denominator as it is. Under `sequence` each sequence must lie whole
    within one call. Weights are cut from above only; none is set to 0, none is normalised.

    Metrics over unmasked tokens: `correction_mean`, 1 where the two laws agree; `correction_truncated`, the
    share whose ratio was above the cap; `effective_sample_size`, as a share: (sum w)^2 / (n sum w^2).

    Raises ValueError for an unknown level, a cap that is not a finite number of at least 1, or `sequence`
    without sequence ids.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; known: {', '.join(LEVELS)}")
    if not 1 <= cap < math.inf:
        raise ValueError(f"cap = {cap} must be finite and at least 1, the weight of equal laws")
    log_ratio = torch.where(mask, (old_logprobs - behaviour_logprobs).detach(), 0.0).double()
    if level == "sequence":
        if sequence_ids is None:
            raise ValueError("level 'sequence' multiplies over a sequence's tokens and needs sequence_ids")
        log_ratio = sequence_sums(log_ratio, mask=mask, sequence_ids=sequence_ids)
    ratio = log_ratio.exp()  # nothing is differentiated: an overflow is inf and the cap holds
    weights = torch.where(mask, ratio.clamp(max=cap), 0.0)
    return weights.to(old_logprobs.dtype), _metrics(weights[mask], (ratio > cap)[mask])


def _metrics(weights: Tensor, truncated: Tensor) -> dict[str, Metric]:
    count = weights.numel()
    parts = torch.stack([weights.sum(), weights.square().sum(), truncated.sum().double()])
    total, squares, above = map(float, parts.cpu())  # one transfer from the device
    return {
        "correction_mean": Mean(total, count),
        "correction_truncated": Mean(above, count),
        "effective_sample_size": EffectiveShare(total, squares, count),
    }
