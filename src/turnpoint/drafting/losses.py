"""Losses of draft heads by name: what each row of a chain is measured by, and what is made of that per chain.

    cross_entropy       - log q(x)                                    x: the token that the text goes on with
    forward_kl          KL(p || q)
    reverse_kl          KL(q || p)
    tv                  1 - alpha
    end_to_end_tv       1 - mean_j prod_{i <= j} alpha_i              (arXiv 2606.12370)
    pathwise_tv         1 - mean_j prod_{i < j} a_i alpha_j           the same without its approximation
    negative_log        - log alpha                                   learns from no overlap at all
    kl_tv_hybrid        w KL(p || q) + (1 - w) (1 - alpha),  w = e^(-3 alpha) held fixed (arXiv 2602.23881)

p is the target's law, held fixed, q the draft's. Those of one row are averaged over a chain's depths. A loss
sees only `RowStatistics`, a few numbers per row, so that it can be computed beside logits that never exist
all at once (`turnpoint.drafting.fused`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from turnpoint.drafting.chains import accept_ratios, end_to_end_tv_loss, pathwise_tv_loss
from turnpoint.drafting.total_variation import overlap
from turnpoint.losses.divergences import forward_kl, reverse_kl

DraftLossName: TypeAlias = Literal[
    "cross_entropy",
    "forward_kl",
    "reverse_kl",
    "tv",
    "end_to_end_tv",
    "pathwise_tv",
    "negative_log",
    "kl_tv_hybrid",
]
Statistic: TypeAlias = Literal["alphas", "draft_logprobs", "forward_kl", "reverse_kl"]

_LOWEST = 1e-30  # no alpha counts as lower in a logarithm: a float32 slope of 1 / alpha stays finite
_SHARPNESS = 3.0  # of the hybrid's switch from KL to TV, as published


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """What losses ask of drafted rows, each [.., gamma], differentiable in the draft but the target's own.

    Statistics that a loss does not ask for are zeros.
    """

    alphas: Tensor
    target_logprobs: Tensor  # of the text's tokens, nats
    draft_logprobs: Tensor
    forward_kl: Tensor  # KL(p || q), nats
    reverse_kl: Tensor  # KL(q || p), nats


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """One loss, and the statistics that it needs."""

    needs: frozenset[Statistic]
    chains: Callable[[RowStatistics, Tensor], Tensor]  # of rows in which nothing stands at masked depths

    def __call__(
        self, rows: RowStatistics, mask: Bool[Tensor, "*anchors gamma"]
    ) -> Float[Tensor, "*anchors"]:
        """Returns the loss of each chain over the depths that `mask` says there are, which come first."""
        columns = {it.name: torch.where(mask, getattr(rows, it.name), 0.0) for it in fields(rows)}
        return self.chains(RowStatistics(**columns), mask)


def draft_loss(name: str) -> DraftLoss:
    """Returns the loss of that name; raises ValueError for one that there is not."""
    if name not in _LOSSES:
        raise ValueError(f"there is no draft loss {name!r}; there are {', '.join(_LOSSES)}")
    return _LOSSES[name]


def row_statistics(
    needs: frozenset[Statistic],
    *,
    target_logits: Float[Tensor, "*anchors gamma V"],
    draft_logits: Float[Tensor, "*anchors gamma V"],
    token_ids: Int[Tensor, "*anchors gamma"],
) -> RowStatistics:
    """Returns the statistics of rows whose logits are all there: the reference of the fused form."""
    both = {"target_logits": target_logits, "draft_logits": draft_logits}
    taught = {"student_logits": draft_logits, "teacher_logits": target_logits}
    target, draft = (_of_tokens(logits, token_ids) for logits in (target_logits.detach(), draft_logits))
    nothing = torch.zeros_like(target)
    return RowStatistics(
        alphas=overlap(**both) if "alphas" in needs else nothing,
        target_logprobs=target,
        draft_logprobs=draft if "draft_logprobs" in needs else nothing,
        forward_kl=forward_kl(**taught) if "forward_kl" in needs else nothing,
        reverse_kl=reverse_kl(**taught) if "reverse_kl" in needs else nothing,
    )


def _of_tokens(logits: Tensor, token_ids: Tensor) -> Tensor:
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return logprobs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)


def _mean(values: Tensor, mask: Bool[Tensor, "*anchors gamma"]) -> Tensor:
    """Returns the mean over each chain's depths, 0 for a chain without any."""
    return torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)


def _end_to_end(rows: RowStatistics, mask: Tensor) -> Tensor:
    return end_to_end_tv_loss(rows.alphas, mask=mask)


def _pathwise(rows: RowStatistics, mask: Tensor) -> Tensor:
    ratios = accept_ratios(target_logprobs=rows.target_logprobs, draft_logprobs=rows.draft_logprobs)
    return pathwise_tv_loss(alphas=rows.alphas, accept_ratios=ratios, mask=mask)


def _negative_log(rows: RowStatistics, mask: Tensor) -> Tensor:
    return _mean(-rows.alphas.clamp(min=_LOWEST).log(), mask)


def _hybrid(rows: RowStatistics, mask: Tensor) -> Tensor:
    share = torch.exp(-_SHARPNESS * rows.alphas.detach())
    return _mean(share * rows.forward_kl + (1 - share) * (1 - rows.alphas), mask)


_LOSSES: Mapping[str, DraftLoss] = {
    "cross_entropy": DraftLoss(
        needs=frozenset({"draft_logprobs"}), chains=lambda rows, mask: _mean(-rows.draft_logprobs, mask)
    ),
    "forward_kl": DraftLoss(
        needs=frozenset({"forward_kl"}), chains=lambda rows, mask: _mean(rows.forward_kl, mask)
    ),
    "reverse_kl": DraftLoss(
        needs=frozenset({"reverse_kl"}), chains=lambda rows, mask: _mean(rows.reverse_kl, mask)
    ),
    "tv": DraftLoss(needs=frozenset({"alphas"}), chains=lambda rows, mask: _mean(1 - rows.alphas, mask)),
    "end_to_end_tv": DraftLoss(needs=frozenset({"alphas"}), chains=_end_to_end),
    "pathwise_tv": DraftLoss(needs=frozenset({"alphas", "draft_logprobs"}), chains=_pathwise),
    "negative_log": DraftLoss(needs=frozenset({"alphas"}), chains=_negative_log),
    "kl_tv_hybrid": DraftLoss(needs=frozenset({"alphas", "forward_kl"}), chains=_hybrid),
}
