"""How much of a draft a target accepts: alpha = sum_v min(p_v, q_v) = 1 - TV(p, q).

    d alpha / d z_v = q_v ([q_v <= p_v] - S),    S = sum of q_v where q_v <= p_v

p is the target's law, q = softmax(z) the draft's. A drafted token is accepted with probability alpha under
rejection sampling (arXiv 2211.17192); to train a draft by alpha itself is Bebop's loss (arXiv 2606.12370,
eq. 10 and 11). Its slope is bounded by 1/4 per id and by 1/2 in sum, whatever the laws (the paper says 1),
and falls to 0 where the draft has no mass on what the target wants: S -> 0. Such a draft must first be taught
by another loss.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from turnpoint.losses.laws import with_slope


def overlap(
    *, target_logits: Float[Tensor, "*tokens V"], draft_logits: Float[Tensor, "*tokens V"]
) -> Float[Tensor, "*tokens"]:
    """Returns alpha of each token, in [0, 1], differentiable in `draft_logits` alone and once.

    Both are divided by their temperatures by the caller. Ids at -inf are outside that side's law. Raises
    ValueError for logits of different shapes.
    """
    if target_logits.shape != draft_logits.shape:
        raise ValueError(
            f"target logits {list(target_logits.shape)} and draft logits {list(draft_logits.shape)} are not "
            f"over the same tokens and ids"
        )
    dtype = torch.promote_types(torch.promote_types(target_logits.dtype, draft_logits.dtype), torch.float32)
    p, q = (torch.softmax(logits.detach(), dim=-1, dtype=dtype) for logits in (target_logits, draft_logits))
    wanted = q <= p
    values = torch.minimum(p, q).sum(-1)
    below = torch.where(wanted, q, 0.0).sum(-1, keepdim=True)
    return with_slope(draft_logits, values=values, slope=(wanted.to(dtype) - below).mul_(q))


def tv_loss(
    *, target_logits: Float[Tensor, "*tokens V"], draft_logits: Float[Tensor, "*tokens V"]
) -> Float[Tensor, "*tokens"]:
    """Returns the total variation distance of each token, 1 - `overlap`."""
    return 1 - overlap(target_logits=target_logits, draft_logits=draft_logits)
