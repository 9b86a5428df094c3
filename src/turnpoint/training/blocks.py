"""Attention over blocks of a packed row, differentiated by hand: few passes, and one array per block kept.

autograd would keep the probabilities twice (float32 and rounded) and pass over the scores a dozen times.
Here scores become probabilities in place of each other, in the type of the values, and backward needs no
more than those: with P = softmax(q k'), O = P v and G = dL/dO,

    dL/dv = P' G,   dS = P * (G v' - rowsum(P * G v')),   dL/dq = dS k,   dL/dk = dS' q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

Spans = tuple[tuple[int, int], ...]  # [start, stop) ranges of the row


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Queries of rows [start, stop) against the keys in `spans`; the last C of these have hidden ones."""

    start: int
    stop: int
    spans: Spans
    hidden: Tensor  # [Q, C] whether the key is not seen; the keys before are seen by all


def block_attention(
    query: Float[Tensor, "H T D"],
    key: Float[Tensor, "Hkv T D"],
    value: Float[Tensor, "Hkv T Dv"],
    *,
    scaling: float,
    blocks: Sequence[Block],
) -> Float[Tensor, "H T Dv"]:
    """Returns softmax(q k' * scaling) v of every block; the blocks cover the row from left to right.

    A key that several blocks read gathers its gradient in float32. Knows no softcap and no sinks, and has
    no second derivative.
    """
    return cast(Tensor, _BlockAttention.apply(query, key, value, scaling, blocks))


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, blocks: Sequence[Block]
    ) -> Tensor:
        # heads that share keys are more queries of one product
        query = (query * scaling).view(key.shape[0], -1, *query.shape[1:])
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        probs: list[Tensor] = []
        for block in blocks:
            scores = torch.bmm(_rows(query, block), _joined(key, block.spans).transpose(1, 2))
            rows = scores.view(*query.shape[:2], *block.hidden.shape[:1], -1)
            columns = rows.shape[-1] - block.hidden.shape[1]
            rows[..., columns:].masked_fill_(block.hidden, -torch.inf)
            probs.append(torch.softmax(scores, dim=-1))  # sums in float32 whatever it reads
            _set_rows(output, block, torch.bmm(probs[-1], _joined(value, block.spans)))
        ctx.save_for_backward(query, key, value, *probs)
        ctx.scaling, ctx.blocks = scaling, blocks
        return output.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        query, key, value, *probs = saved
        grad = grad.reshape(*query.shape[:3], -1)
        to_query = torch.empty_like(query)
        to_key, to_value = (torch.zeros_like(it, dtype=torch.float32) for it in (key, value))
        softmax_backward: Any = torch.ops.aten._softmax_backward_data
        for block, law in zip(cast("Sequence[Block]", ctx.blocks), probs, strict=True):
            above = _rows(grad, block)
            _add_joined(to_value, block.spans, torch.bmm(law.transpose(1, 2), above))
            slope = torch.bmm(above, _joined(value, block.spans).transpose(1, 2))
            slope = softmax_backward(slope, law, -1, law.dtype)
            _add_joined(to_key, block.spans, torch.bmm(slope.transpose(1, 2), _rows(query, block)))
            _set_rows(to_query, block, torch.bmm(slope, _joined(key, block.spans)))
        to_query = to_query.mul_(ctx.scaling).flatten(0, 1)
        return to_query, to_key.to(key.dtype), to_value.to(value.dtype), None, None


def _rows(tensor: Tensor, block: Block) -> Tensor:
    """Returns the block's rows of [Hkv, R, T, D] as [Hkv, R * Q, D]."""
    return tensor[:, :, block.start : block.stop].flatten(1, 2)


def _set_rows(tensor: Tensor, block: Block, rows: Tensor) -> None:
    place = tensor[:, :, block.start : block.stop]
    place.copy_(rows.view_as(place))


def _joined(tensor: Tensor, spans: Spans) -> Tensor:
    """Returns the rows of [Hkv, T, D] that lie in `spans`, [Hkv, K, D]."""
    parts = [tensor[:, start:stop] for start, stop in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _add_joined(tensor: Tensor, spans: Spans, rows: Tensor) -> None:
    """Adds rows to where `_joined` takes them from."""
    parts = torch.split(rows, [stop - start for start, stop in spans], dim=1)
    for (start, stop), part in zip(spans, parts, strict=True):
        tensor[:, start:stop] += part
