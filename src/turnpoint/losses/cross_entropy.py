"""Cross-entropy: imitate given tokens, for supervised fine-tuning.

loss = - sum_t w_t log p(y_t) / denominator
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.metrics import Mean, Metric


def cross_entropy_loss(
    *,
    logprobs: Float[Tensor, "*tokens"],
    old_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    denominator: float,
    sequence_ids: Int[Tensor, "*tokens"],
    weights: Float[Tensor, "*tokens"] | None,
) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
    """Returns the loss, differentiable in `logprobs`, and the metric `cross_entropy`, nats per token.

    A `turnpoint.protocols.Loss`: it takes `old_logprobs`, `advantages` and `sequence_ids` and reads none of
    them. What stands at masked positions changes nothing. The metric is a plain mean over unmasked tokens,
    without weights. Raises ValueError for a denominator as `policy_gradient_loss` does.
    """
    if not 0 <= denominator < math.inf or (denominator == 0 and bool(mask.any())):
        raise ValueError(
            f"denominator {denominator} for {int(mask.sum())} trained tokens; it must be positive"
        )
    terms = torch.where(mask, -logprobs, 0.0)
    weighted = terms if weights is None else terms * torch.where(mask, weights.detach(), 0.0)
    loss = weighted.sum() / (denominator or 1.0)
    return loss, {"cross_entropy": Mean(float(terms.detach().sum()), int(mask.sum()))}
