"""PPO's clipped surrogate, with a bound for each side and dual clip.

    A >= 0    A min(rho, 1 + high)
    A <  0    A max(rho, 1 - low), and with dual clip  A min(max(rho, 1 - low), dual)

This is min(rho A, clip(rho, 1 - low, 1 + high) A): the sign of A says which bound can bind. Without dual
clip a token with A < 0 has no upper bound: one whose probability grew a hundredfold pushes back a
hundredfold. Log rho is bounded before it is exponentiated, so that a bound ratio cannot overflow. PPO is
arXiv 1707.06347, its two bounds are DAPO's (2503.14476), dual clip is from 1912.09729.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def ppo_clip(
    *,
    log_ratio: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    log_low: float,
    log_high: float,
    log_dual: float = math.inf,
) -> tuple[Float[Tensor, "*tokens"], Bool[Tensor, "*tokens"]]:
    """Returns each token's surrogate, to be maximised, and whether a bound took its gradient.

    `log_low`, `log_high` and `log_dual` bound log rho: log(1 - low), log(1 + high), log(dual).
    """
    bounded = torch.where(
        advantages >= 0, log_ratio.clamp(max=log_high), log_ratio.clamp(min=log_low, max=log_dual)
    )
    return bounded.exp() * advantages, bounded != log_ratio
