"""Log-probabilities through a linear head, some columns of the vocabulary at a time.

Where the head is one matrix, a tile of it meets all rows at once: its gradient is written once, where chunks
of rows would add to the whole matrix each, and scores are read while they are still in the cache. The sum
over the vocabulary is carried from tile to tile with its largest term taken out (Milakov and Gimelshein,
arXiv 1805.02867), and backward computes the scores again.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def tiled_logprobs(
    *,
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    factor: float,
    columns: int,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Returns log p of `targets`, and the entropy of each law, in nats; p = softmax(factor * head(hidden)).

    `columns` of the vocabulary have scores at a time, float32 [N, columns]. Log-probabilities differentiate
    to hidden states, weight and bias; the entropy has no gradient. Knows no softcap.
    """
    results = cast(Any, _TiledLogprobs).apply(hidden, weight, bias, targets, factor, columns)
    return cast("tuple[Tensor, Tensor]", results)


class _TiledLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        factor: float,
        columns: int,
    ) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(len(hidden), 1, device=hidden.device)
        top, total, product, chosen = zeros - torch.inf, zeros.clone(), zeros.clone(), zeros.clone()
        for start in range(0, len(weight), columns):
            scores = _scores(hidden, weight, bias, slice(start, start + columns)).mul_(factor)
            rows, places = _inside(targets, start, scores)
            chosen[rows, 0] = scores[rows, places]
            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            shrunk, terms = (top - higher).exp_(), (scores - higher).exp_()
            total.mul_(shrunk).add_(terms.sum(dim=-1, keepdim=True))
            product.mul_(shrunk).add_(cast(Any, torch.linalg).vecdot(terms, scores).unsqueeze(-1))
            top = higher
        log_total = top + total.log()
        ctx.save_for_backward(hidden, weight, bias, targets, log_total)
        ctx.factor, ctx.columns = factor, columns
        entropy = (log_total - product / total).squeeze(-1)
        ctx.mark_non_differentiable(entropy)
        return (chosen - log_total).squeeze(-1), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, targets, log_total = ctx.saved_tensors
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        to_bias = torch.empty_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        to_hidden = torch.zeros_like(hidden, dtype=torch.float32)  # summed over tiles
        grad = grad * ctx.factor
        for start in range(0, len(weight), ctx.columns):
            tile = slice(start, start + ctx.columns)
            slope = _scores(hidden, weight, bias, tile).mul_(ctx.factor).sub_(log_total)
            slope = slope.exp_().mul_(-grad.unsqueeze(-1))
            rows, places = _inside(targets, start, slope)
            slope[rows, places] += grad[rows]  # of one score: [it is the target] - its probability
            if to_bias is not None:
                to_bias[tile] = slope.sum(dim=0)
            slope = slope.to(weight.dtype)
            to_hidden += slope @ weight[tile]
            if to_weight is not None:
                torch.mm(slope.t(), hidden, out=to_weight[tile])
        return to_hidden.to(hidden.dtype), to_weight, to_bias, None, None, None


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, tile: slice) -> Tensor:
    """Returns float32 scores that are nobody else's, [N, columns]."""
    scores = functional.linear(hidden, weight[tile], None if bias is None else bias[tile])
    return scores.float()


def _inside(targets: Tensor, start: int, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows whose target lies among these columns, and in which."""
    places = targets - start
    rows = ((places >= 0) & (places < scores.shape[1])).nonzero().squeeze(-1)
    return rows, places[rows]
