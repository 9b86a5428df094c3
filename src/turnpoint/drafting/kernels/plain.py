"""The row pass in torch: the reference of the Triton kernel, and what runs on CPUs.

Rows are taken a few at a time, so that what lies beside the logits stays in a processor's cache: at most five
float32 tensors of `_BLOCK` numbers, whatever n and V. On CPUs a comparison is written as 0.0 and 1.0 and
multiplied, since `torch.where` and masks take ten times as long as any other pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from turnpoint.drafting.kernels.rows import RowFigures, RowKernel, RowWeights
from turnpoint.drafting.losses import Statistic
from turnpoint.losses.laws import LOWEST_LOGPROB

_BLOCK = 1 << 20  # numbers, 4 MiB: enough for all cores, little enough for a cache


def normaliser_of(logits: Tensor) -> Tensor:
    """Returns log sum exp of each row, [n]."""
    found = torch.empty(len(logits), device=logits.device)
    for rows in _blocks(logits):
        found[rows] = logits[rows].float().logsumexp(-1)
    return found


def measure(
    *,
    target_logits: Tensor,
    target_normaliser: Tensor,
    draft_logits: Tensor,
    needs: frozenset[Statistic],
) -> RowFigures:
    """Returns the figures of rows."""
    normaliser = normaliser_of(draft_logits)
    alphas, below, forward, reverse = torch.zeros(4, len(draft_logits), device=draft_logits.device)
    for rows in _blocks(draft_logits):
        target = (target_logits[rows], target_normaliser[rows])
        draft = (draft_logits[rows], normaliser[rows])
        p, q = _law(*target), _law(*draft)
        below[rows] = _dot(q, _at_most(q, p))
        alphas[rows] = torch.minimum(p, q).sum(-1)
        if needs & {"forward_kl", "reverse_kl"}:
            gap = _gap(*target, *draft)
            if "forward_kl" in needs:
                forward[rows] = -_dot(p, gap)
            if "reverse_kl" in needs:
                reverse[rows] = _dot(q, gap)
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
    every = (weights.alphas, weights.draft_logprobs, weights.forward_kl, weights.reverse_kl)
    of_q = weights.alphas * figures.below + weights.draft_logprobs - weights.forward_kl
    for rows in _blocks(draft_logits):
        target = (target_logits[rows], target_normaliser[rows])
        draft = (draft_logits[rows], figures.normaliser[rows])
        p, q = _law(*target), _law(*draft)
        # everything that is proportional to q first: one factor per id
        factor = _at_most(q, p).mul_(_column(weights.alphas[rows])).sub_(_column(of_q[rows]))
        if "reverse_kl" in needs:
            gap = _gap(*target, *draft).sub_(_column(figures.reverse_kl[rows]))
            factor += gap.mul_(_column(weights.reverse_kl[rows]))
        slope = factor.mul_(q)
        if "forward_kl" in needs:
            slope -= p.mul_(_column(weights.forward_kl[rows]))
        slope.scatter_add_(1, _column(token_ids[rows]), _column(weights.draft_logprobs[rows]))
        draft_logits[rows] = slope
    draft_logits[torch.stack(every).eq(0).all(0)] = 0.0


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Yields slices of rows, at least one row each."""
    length, width = logits.shape
    size = max(1, _BLOCK // max(width, 1))
    yield from (slice(start, start + size) for start in range(0, length, size))


def _law(logits: Tensor, normaliser: Tensor) -> Tensor:
    return (logits.float() - _column(normaliser)).exp_()


def _at_most(left: Tensor, right: Tensor) -> Tensor:
    """Returns 1.0 where left <= right, else 0.0."""
    return torch.le(left, right, out=torch.empty_like(left))


def _gap(target: Tensor, target_normaliser: Tensor, draft: Tensor, normaliser: Tensor) -> Tensor:
    """Returns log q/p, nats; no log-probability counts as lower than the floor."""
    log_q = (draft.float() - _column(normaliser)).clamp_(min=LOWEST_LOGPROB)
    return log_q.sub_((target.float() - _column(target_normaliser)).clamp_(min=LOWEST_LOGPROB))


def _column(rows: Tensor) -> Tensor:
    return rows.unsqueeze(-1)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return cast(Tensor, torch.linalg.vecdot(left, right))


PLAIN_ROWS = RowKernel(normaliser=normaliser_of, measure=measure, slope_=slope_)
