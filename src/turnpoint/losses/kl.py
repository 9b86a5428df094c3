"""A pull towards a reference, named by the divergence whose gradient it follows.

    l    = log p(y_t) - log p_ref(y_t)
    rho  = sg(p(y_t) / p_old(y_t))

    divergence  loss of token t                     expected gradient    estimator
    reverse     rho l^2 / 2                         of KL(p || p_ref)    k2
    forward     rho (exp(-l) - 1 + l)               of KL(p_ref || p)    k3

The tokens were drawn from p_old, so the expectation of rho f(y) grad log p(y) is sum_y f(y) grad p(y):

    reverse     f = l               sum_y grad p(y) log(p(y) / p_ref(y))  =  grad KL(p || p_ref)
    forward     f = 1 - exp(-l)     - sum_y p_ref(y) grad log p(y)        =  grad KL(p_ref || p)

since sum_y grad p(y) = 0. Because of rho both hold at every update on a batch, not only at the first. By
the same identity k1 = l has the expected gradient 0, and the *value* of k3 estimates KL(p || p_ref) while
its gradient is that of the other direction: value and gradient of an estimator are two things.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from turnpoint.losses.reductions import reduce_tokens
from turnpoint.metrics import Mean, Metric

DIVERGENCES = ("reverse", "forward")
_GRADIENT_OF = {"k2": "reverse", "k3": "forward", "low_var_kl": "forward"}
# Nats. float32 ends at e^88: room for rho exp(-l), for its sum over tokens and for squared gradients.
_LARGEST_EXPONENT = 30.0


def kl_loss(
    *,
    logprobs: Float[Tensor, "*tokens"],
    reference_logprobs: Float[Tensor, "*tokens"],
    old_logprobs: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    denominator: float,
    divergence: str = "reverse",
    weights: Float[Tensor, "*tokens"] | None = None,
) -> tuple[Float[Tensor, ""], dict[str, Metric]]:
    """Returns the loss, differentiable in `logprobs` alone, and the metric `kl`.

    All log-probabilities are in nats, of the same sampled token at the same temperature; `old_logprobs` of
    the law it was drawn from. `denominator` and `weights` are those of the policy term, so that the two can
    be added: policy loss + coef * kl loss. What stands at masked positions changes nothing. The divergence
    is that of the next-token laws at the prefixes p_old visited; how p changes which prefixes are visited
    is not part of it.

    Metric: `kl`, mean over unmasked tokens of rho k3, nats: an estimate of KL(p || p_ref) whatever the
    divergence. Bounds keep it finite: rho ends at e^30, and beyond p = e^-30 p_ref k3 goes on as its tangent,
    so that the gradient keeps its sign. On-policy at most one token in e^30 is there.

    Raises ValueError for an unknown divergence or for an estimator's name, with the divergence that is
    meant, and for a denominator as `policy_gradient_loss` does.
    """
    _check_divergence(divergence)
    gap = torch.where(mask, logprobs - reference_logprobs.detach(), 0.0)
    log_ratio = torch.where(mask, (logprobs - old_logprobs).detach(), 0.0)
    ratio = log_ratio.clamp(max=_LARGEST_EXPONENT).exp()
    k3 = ratio * _k3(gap)
    terms = ratio * gap.square() / 2 if divergence == "reverse" else k3
    loss = reduce_tokens(terms, mask=mask, denominator=denominator, weights=weights)
    return loss, {"kl": Mean(float(k3.detach().sum()), int(mask.sum()))}


def _k3(gap: Tensor) -> Tensor:
    """Returns exp(-l) - 1 + l; below -30 its tangent: value and slope stay finite, the slope's sign right."""
    at = gap.detach().clamp(min=-_LARGEST_EXPONENT)
    decay = torch.expm1(-at)
    return decay + at - decay * (gap - at)


def _check_divergence(divergence: str) -> None:
    if divergence == "k1":
        raise ValueError("divergence 'k1': as a loss its expected gradient is 0; use 'reverse' or 'forward'")
    if divergence in _GRADIENT_OF:
        meant = _GRADIENT_OF[divergence]
        raise ValueError(f"divergence {divergence!r} is an estimator; the one it follows is {meant!r}")
    if divergence not in DIVERGENCES:
        raise ValueError(f"unknown divergence {divergence!r}; known: {', '.join(DIVERGENCES)}")
