"""CISPO (MiniMax-M1, arXiv 2506.13585): a clipped ratio only weights the gradient; no token loses it.

    surrogate of token t = sg(clip(rho_t, 1 - low, 1 + high)) A_t log p_t

The paper has no lower bound: low = 1, log bound -inf. The upper bound is 1 + high; TRL's epsilon_high is
the bound itself, so that its 5.0 is 4.0 here.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor


def cispo(
    *,
    logprobs: Float[Tensor, "*tokens"],
    log_ratio: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    log_low: float,
    log_high: float,
) -> tuple[Float[Tensor, "*tokens"], Bool[Tensor, "*tokens"]]:
    """Returns each token's surrogate, to be maximised, and whether its weight was bounded.

    `log_low` and `log_high` bound log rho. Only the gradient has a meaning: the value is no expected return.
    """
    bounded = log_ratio.detach().clamp(min=log_low, max=log_high)
    return bounded.exp() * advantages * logprobs, bounded != log_ratio
