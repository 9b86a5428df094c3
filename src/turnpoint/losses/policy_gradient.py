"""The clipped policy gradient.

    rho_t = p(y_t) / p_old(y_t)
    loss  = - sum_t w_t min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t) / denominator

`ppo_clip` is PPO's objective (arXiv 1707.06347) with a bound for each side (DAPO, 2503.14476). For A >= 0
the minimum is A min(rho, 1 + high), otherwise A max(rho, 1 - low): the sign of A says which bound can
bind, and log rho is bounded before it is exponentiated, so that a bound ratio cannot overflow.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.metrics import Max, Mean, Metric

_DEFAULT_CLIPS = {"ppo_clip": (0.2, 0.28)}


def policy_gradient_loss(
    *,
    logprobs: Float[Tensor, "*tokens"],
    old_logprobs: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    denominator: float,
    objective: str = "ppo_clip",
    sequence_ids: Int[Tensor, "*tokens"] | None = None,
    weights: Float[Tensor, "*tokens"] | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
    """Returns the loss, differentiable in `logprobs` alone, and its metrics over unmasked tokens.

    Log-probabilities are in nats, of the law sampled from. `denominator` is global over the optimiser
    step, so that the losses of its micro-batches add up to the loss of the step; it may be 0 when nothing
    trains, and the loss is then 0. What stands at masked positions, NaN included, changes nothing.
    `weights` multiply each token's loss: aggregation (`sequence_weights`) and off-policy correction.
    `sequence_ids` say which tokens are one member's; ppo_clip, a sum over tokens, does not need them.

    The default clips are 0.2 and 0.28. With one update per batch rho is 1 and the clips are inert. No KL
    term and no entropy bonus.

    Metrics: `clip_fraction` of tokens whose gradient a bound removed, `ratio_mean`, `ratio_deviation` (the
    largest |rho - 1|), `approx_kl` of p_old to p (mean of rho - 1 - log rho, nats).

    Raises ValueError for an unknown objective, an impossible clip, or a denominator that is negative, not
    finite, or 0 although tokens train.
    """
    low, high = _clips(objective, clip_low, clip_high)
    _check_denominator(denominator, mask)
    # Selecting, not multiplying by 0: 0 * NaN would survive, in the backward pass too.
    advantages = torch.where(mask, advantages.detach(), 0.0)
    log_ratio = torch.where(mask, logprobs - old_logprobs.detach(), 0.0)
    bounded = torch.where(advantages >= 0, log_ratio.clamp(max=high), log_ratio.clamp(min=low))
    surrogate = bounded.exp() * advantages
    if weights is not None:
        surrogate = surrogate * torch.where(mask, weights.detach(), 0.0)
    loss = -surrogate.sum() / (denominator or 1.0)
    return loss, _metrics(log_ratio.detach()[mask], (bounded != log_ratio)[mask], advantages[mask])


def _metrics(log_ratio: Tensor, bound: Tensor, advantages: Tensor) -> dict[str, Metric]:
    count = log_ratio.numel()
    change = log_ratio.expm1()  # rho - 1, exact where rho is close to 1
    clipped = (bound & (advantages != 0)).sum().to(change.dtype)
    sums = [clipped, change.sum(), (change - log_ratio).sum()]
    totals = [float(total) for total in torch.stack(sums).cpu()]  # one transfer from the device
    return {
        "clip_fraction": Mean(totals[0], count),
        "ratio_mean": Mean(count + totals[1], count),
        "ratio_deviation": Max(change.abs().max().item()) if count else Max(),
        "approx_kl": Mean(totals[2], count),
    }


def _clips(objective: str, low: float | None, high: float | None) -> tuple[float, float]:
    """Returns the bounds of log rho."""
    if objective not in _DEFAULT_CLIPS:
        raise ValueError(f"unknown objective {objective!r}; known: {', '.join(_DEFAULT_CLIPS)}")
    default_low, default_high = _DEFAULT_CLIPS[objective]
    low = default_low if low is None else low
    high = default_high if high is None else high
    if not 0 < low <= 1 or not high > 0:
        raise ValueError(f"clips need 0 < low <= 1 and high > 0, got low {low} and high {high}")
    return (math.log1p(-low) if low < 1 else -math.inf), math.log1p(high)


def _check_denominator(denominator: float, mask: Tensor) -> None:
    if not 0 <= denominator < math.inf or (denominator == 0 and bool(mask.any())):
        raise ValueError(
            f"denominator {denominator} for {int(mask.sum())} trained tokens; it must be positive"
        )
