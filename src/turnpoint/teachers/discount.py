"""What a token is held responsible for: the teacher's word on it alone, or also on what it led to.

    G_t = sum over s >= t of discount^(s - t) d_s,    within one sequence

    discount  expected policy gradient of G, negated                    what it is
    0         sum over t of grad KL(p_t || q_t), prefixes held fixed    GKD's gradient; little noise
    1         grad KL of whole sequences                                exact; noise grows with their length
    between   what a token led to counts discount^(s - t)               of no divergence known

0 is what everybody trains with, and has the same optimum where the student can equal the teacher: it only
does not steer towards prefixes on which the teacher is easier to follow (arXiv 2306.08543, 2306.13649).
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def discounted_signal(
    signal: Float[Tensor, " N"],
    *,
    discount: float,
    sequence_ids: Int[Tensor, " N"],
    mask: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    """Returns G_t of each token, nats, detached; 0 where `mask` is False, whatever stands there.

    Tokens of a sequence, those with one id, must lie whole in the call and in the order in which they were
    generated; other sequences may stand between them. s - t counts unmasked tokens: masking one is
    deleting it. Clip before, not after: the sum is no longer about one token.

    Raises ValueError for a discount outside [0, 1].
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"discount = {discount} must lie in [0, 1]: 0 is the token's own signal alone")
    kept = torch.ones_like(sequence_ids, dtype=torch.bool) if mask is None else mask
    own = torch.where(kept, signal.detach(), 0.0)
    if discount == 0:
        return own
    ids, order = cast("tuple[Tensor, Tensor]", sequence_ids[kept].sort(stable=True))
    returns = _returns(own[kept][order].double(), ids, discount)
    back = torch.empty_like(returns).index_copy_(0, order, returns)
    return torch.zeros_like(own).masked_scatter_(kept, back.to(own.dtype))


def _returns(values: Tensor, ids: Tensor, discount: float) -> Tensor:
    """Returns-to-go of sequences that lie one after the other, by doubling how far each token looks.

    After j rounds `total` holds the next 2^j tokens; adding what stands 2^j further doubles that.
    """
    total, reach, factor = values.clone(), 1, discount
    while reach < len(ids):
        same = ids[reach:] == ids[:-reach]
        if not bool(same.any()):
            break  # no sequence is longer
        further = torch.where(same, total[reach:], 0.0)
        total = torch.cat([total[:-reach] + factor * further, total[-reach:]])
        reach, factor = 2 * reach, factor * factor
    return total
