"""The row pass in torch: the reference of the Triton kernel, and what runs on CPUs.

It lays at most three float32 [n, V] beside the logits.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from turnpoint.drafting.kernels.rows import RowFigures, RowKernel, RowWeights
from turnpoint.drafting.losses import Statistic
from turnpoint.losses.laws import LOWEST_LOGPROB


def normaliser_of(logits: Tensor) -> Tensor:
    """Returns log sum exp of each row, [n]."""
    return logits.float().logsumexp(-1)


def measure(
    *,
    target_logits: Tensor,
    target_normaliser: Tensor,
    draft_logits: Tensor,
    needs: frozenset[Statistic],
) -> RowFigures:
    """Returns the figures of rows."""
    normaliser = normaliser_of(draft_logits)
    p, q = _law(target_logits, target_normaliser), _law(draft_logits, normaliser)
    alphas = torch.minimum(p, q).sum(-1)
    below = torch.where(q <= p, q, 0.0).sum(-1)
    forward = reverse = torch.zeros_like(alphas)
    if needs & {"forward_kl", "reverse_kl"}:
        gap = _gap(target_logits, target_normaliser, draft_logits, normaliser)
        forward = -_dot(p, gap) if "forward_kl" in needs else forward
        reverse = _dot(q, gap) if "reverse_kl" in needs else reverse
    return RowFigures(
        normaliser=normaliser, alphas=alphas, below=below, forward_kl=forward, reverse_kl=reverse
    )


def slope_(
    *,
    target_logits: Tensor,
    target_normaliser: Tensor,
    draft_logits: Tensor,
    token_ids: Tensor,
    figures: RowFigures,
    weights: RowWeights,
    needs: frozenset[Statistic],
) -> None:
    """Writes the derivative of the loss by the draft's logits in their place."""
    p = _law(target_logits, target_normaliser)
    q = _law(draft_logits, figures.normaliser)
    # everything that is proportional to q first: one factor per id
    factor = (q <= p).to(q.dtype).mul_(_column(weights.alphas))
    factor -= _column(weights.alphas * figures.below + weights.draft_logprobs - weights.forward_kl)
    if "reverse_kl" in needs:
        gap = _gap(target_logits, target_normaliser, draft_logits, figures.normaliser)
        factor += gap.sub_(_column(figures.reverse_kl)).mul_(_column(weights.reverse_kl))
    slope = factor.mul_(q)
    if "forward_kl" in needs:
        slope -= p.mul_(_column(weights.forward_kl))
    slope.scatter_add_(1, token_ids.unsqueeze(1), _column(weights.draft_logprobs))
    every = (weights.alphas, weights.draft_logprobs, weights.forward_kl, weights.reverse_kl)
    idle = torch.stack(every).eq(0).all(0)
    draft_logits.copy_(slope.masked_fill_(_column(idle), 0.0))


def _law(logits: Tensor, normaliser: Tensor) -> Tensor:
    return (logits.float() - _column(normaliser)).exp_()


def _gap(target: Tensor, target_normaliser: Tensor, draft: Tensor, normaliser: Tensor) -> Tensor:
    """Returns log q/p, nats; no log-probability counts as lower than the floor."""
    log_q = (draft.float() - _column(normaliser)).clamp_(min=LOWEST_LOGPROB)
    return log_q.sub_((target.float() - _column(target_normaliser)).clamp_(min=LOWEST_LOGPROB))


def _column(rows: Tensor) -> Tensor:
    return rows.unsqueeze(-1)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return cast(Tensor, torch.linalg.vecdot(left, right))


PLAIN_ROWS = RowKernel(normaliser=normaliser_of, measure=measure, slope_=slope_)
