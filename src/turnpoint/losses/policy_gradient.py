"""The policy gradient: a weighted sum over tokens of one of four surrogates.

    rho_t = p(y_t) / p_old(y_t)
    loss  = - sum_t w_t surrogate_t / denominator

    objective  surrogate of token t                            default bounds       equations in
    ppo_clip   min(rho A, clip(rho, 1 - low, 1 + high) A)      low 0.2, high 0.28   ppo_clip.py
    gspo       the same with one ratio for a whole sequence    low 3e-4, high 4e-4  gspo.py
    cispo      sg(clip(rho, 1 - low, 1 + high)) A log p        none, high 0.28      cispo.py
    reinforce  sg(min(rho, 1 + high)) A log p                  high 1.0             cispo.py

At the first update on a batch rho is 1 and all four have the gradient of A log p. `reinforce` is the policy
gradient with truncated importance weights and nothing else (cispo without its lower bound, at the cap of
`truncated_weights`): for advantages that say where each token should go, such as a teacher's signal alone,
where a clip would silence just the tokens that are furthest off. With `old_logprobs` of the behaviour
policy it is the whole off-policy correction in one ratio.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.losses.cispo import cispo
from turnpoint.losses.gspo import gspo
from turnpoint.losses.ppo_clip import ppo_clip
from turnpoint.losses.reductions import reduce_tokens
from turnpoint.metrics import Max, Mean, Metric

_DEFAULT_CLIPS = {
    "ppo_clip": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (1.0, 0.28),
    "reinforce": (1.0, 1.0),
}


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
    dual_clip: float | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
    """Returns the loss, differentiable in `logprobs` alone, and its metrics over unmasked tokens.

    Log-probabilities are in nats, of the law sampled from. `denominator` is global over the optimiser
    step, so that the losses of its micro-batches add up to the loss of the step; it may be 0 when nothing
    trains, and the loss is then 0. What stands at masked positions, NaN included, changes nothing.
    `weights` multiply each token's loss: aggregation (`sequence_weights`) and off-policy correction.
    `sequence_ids` say which tokens are one member's: any integers, each sequence whole within one call.
    gspo needs them, and with them the aggregation `sequence`; the others are sums over tokens.

    Bounds are 1 - clip_low and 1 + clip_high, clip_low = 1 for none below; None takes the objective's
    default. `dual_clip` (ppo_clip only) also bounds rho from above where the advantage is negative. With
    one update per batch rho is 1 and all bounds are inert. No KL term (`kl_loss`) and no entropy bonus.

    Metrics: `clip_fraction` of tokens on which a bound acted at a non-zero advantage (it took the gradient
    of a token, under gspo of a sequence; under cispo and reinforce it capped the weight); over the tokens'
    own ratios `ratio_mean`, `ratio_deviation` (the largest |rho - 1|) and `approx_kl` of p_old to p (mean
    of rho - 1 - log rho, nats).

    Raises ValueError for an unknown objective, an impossible bound, gspo without sequence ids, or a
    denominator that is negative, not finite, or 0 although tokens train.
    """
    log_low, log_high, log_dual = _log_bounds(objective, clip_low, clip_high, dual_clip)
    # Selecting, not multiplying by 0: 0 * NaN would survive, in the backward pass too.
    advantages = torch.where(mask, advantages.detach(), 0.0)
    logprobs = torch.where(mask, logprobs, 0.0)
    log_ratio = logprobs - torch.where(mask, old_logprobs.detach(), 0.0)
    common = {"log_ratio": log_ratio, "advantages": advantages}
    match objective:
        case "gspo":
            if sequence_ids is None:
                raise ValueError("gspo has one ratio per sequence and needs sequence_ids")
            surrogate, bound = gspo(
                **common, mask=mask, sequence_ids=sequence_ids, log_low=log_low, log_high=log_high
            )
        case "cispo" | "reinforce":
            surrogate, bound = cispo(logprobs=logprobs, **common, log_low=log_low, log_high=log_high)
        case _:
            surrogate, bound = ppo_clip(**common, log_low=log_low, log_high=log_high, log_dual=log_dual)
    loss = reduce_tokens(-surrogate, mask=mask, denominator=denominator, weights=weights)
    return loss, _metrics(log_ratio.detach()[mask], bound[mask], advantages[mask])


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


def _log_bounds(
    objective: str, low: float | None, high: float | None, dual: float | None
) -> tuple[float, float, float]:
    """Returns what bounds log rho below, above, and above where the advantage is negative."""
    if objective not in _DEFAULT_CLIPS:
        raise ValueError(f"unknown objective {objective!r}; known: {', '.join(_DEFAULT_CLIPS)}")
    default_low, default_high = _DEFAULT_CLIPS[objective]
    low = default_low if low is None else low
    high = default_high if high is None else high
    if not 0 < low <= 1 or not high > 0:
        raise ValueError(f"clips need 0 < low <= 1 and high > 0, got low {low} and high {high}")
    if objective == "reinforce" and low != 1:
        raise ValueError(f"clip_low = {low} is a bound of cispo; reinforce has none below")
    if dual is not None and objective != "ppo_clip":
        raise ValueError(f"dual_clip = {dual} is a bound of ppo_clip; {objective} has none like it")
    if dual is not None and not dual > 1 + high:
        raise ValueError(f"dual_clip = {dual} must be above 1 + clip_high = {1 + high}")
    log_low = math.log1p(-low) if low < 1 else -math.inf
    return log_low, math.log1p(high), math.inf if dual is None else math.log(dual)
