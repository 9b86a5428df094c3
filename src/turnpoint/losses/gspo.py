"""GSPO (arXiv 2507.18071): one importance ratio per sequence, in its token form.

    s_i     = exp(mean over the sequence's unmasked tokens of log rho_t)
    s_{i,t} = sg(s_i) p_t / sg(p_t)
    surrogate of token t = min(s_{i,t} A_t, clip(s_{i,t}, 1 - low, 1 + high) A_t)

s_{i,t} has the value of s_i, so a sequence is clipped as a whole, and the gradient of p_t, so that each
token's advantage acts on that token alone. Where all tokens of a sequence have one advantage and the
weight 1 / length, their sum is the paper's min(s_i A_i, clip(s_i) A_i), in value and gradient.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.losses.ppo_clip import ppo_clip
from turnpoint.losses.sequences import sequence_sums


def gspo(
    *,
    log_ratio: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    sequence_ids: Int[Tensor, "*tokens"],
    log_low: float,
    log_high: float,
) -> tuple[Float[Tensor, "*tokens"], Bool[Tensor, "*tokens"]]:
    """Returns each token's surrogate, to be maximised, and whether its sequence was clipped for it.

    A sequence must lie whole within one call: half of it has another ratio. `log_low` and `log_high`
    bound log s. A weight common to a sequence scales its term of the paper's sum; weights that differ
    within a sequence scale each token's own gradient and leave s_i, an unweighted mean, as it is.
    """
    sums = sequence_sums(log_ratio, mask=mask, sequence_ids=sequence_ids)
    lengths = sequence_sums(torch.ones_like(log_ratio), mask=mask, sequence_ids=sequence_ids)
    mean = (sums / lengths.clamp(min=1)).to(log_ratio.dtype)
    return ppo_clip(
        log_ratio=mean + (log_ratio - log_ratio.detach()),
        advantages=advantages,
        log_low=log_low,
        log_high=log_high,
    )
