"""Draft losses from hidden states and the output head: never tokens x vocabulary, for any number of depths.

Anchors are taken a chunk at a time, all depths of an anchor together, so that a chain's product is at hand:
one product with the head for the chunk's targets, one per depth for its drafts, the row pass (figures of each
row), the loss of the chains from these few numbers and its derivatives by them, the row pass again (slopes in
place of logits), and one product per depth back to hidden states. The head is shared with the policy and
gets no gradient; nor does the target. Loss and gradient are of one pass, 2 gamma + 1 products in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from turnpoint.drafting.kernels.choice import row_kernel
from turnpoint.drafting.kernels.rows import RowFigures, RowKernel, RowWeights
from turnpoint.drafting.losses import DraftLoss, RowStatistics, draft_loss
from turnpoint.losses.chunked import LinearHead

_CHUNK_BYTES = 256 << 20  # of logits


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedDraft:
    """What a fused pass gives."""

    loss: Tensor  # a scalar, differentiable in the draft's hidden states
    alphas: Tensor  # [N, gamma], how much of each draft is accepted; 0 where masked


def fused_linear_tv(
    *,
    head: LinearHead,
    target_hidden: Float[Tensor, "M D"],
    draft_hidden: Float[Tensor, "gamma N D"],
    next_ids: Int[Tensor, " M"],
    mask: Bool[Tensor, "anchors depths"],
    denominator: float,
    loss: str = "end_to_end_tv",
    temperature: float = 1.0,
    chunk: int | None = None,
    kernel: RowKernel | None = None,
) -> FusedDraft:
    """Returns sum over anchors of the chain's loss / `denominator`, and each row's acceptance.

    Depth i of anchor n is measured against the target's row n + i, and `next_ids[n + i]` is what the text
    goes on with there. `mask` says which depths there are; those of a chain come first. Logits of both
    are divided by `temperature`, the policy's. `chunk`: anchors at a time (default: what 256 MiB hold).
    `kernel`: the row pass (default: what `kernels.choice` has for the device).

    Differentiable once, in `draft_hidden`. Masked rows may hold anything. Raises ValueError for a
    temperature or chunk that is not positive, tensors that do not fit each other, an unmasked depth beyond
    the last target row, and an unknown loss.
    """
    gamma, anchors, _ = draft_hidden.shape
    if not temperature > 0 or (chunk is not None and chunk < 1):
        raise ValueError(f"temperature = {temperature} and chunk = {chunk} must be positive")
    if mask.shape != (anchors, gamma) or len(next_ids) != len(target_hidden):
        raise ValueError(
            f"{anchors} anchors of {gamma} depths and {len(target_hidden)} target rows, but a mask of "
            f"{list(mask.shape)} and {len(next_ids)} next ids"
        )
    rows = torch.arange(anchors, device=mask.device).unsqueeze(1) + torch.arange(gamma, device=mask.device)
    if bool((mask & (rows >= len(target_hidden))).any()):
        raise ValueError(f"the mask lets a depth be measured beyond the {len(target_hidden)} target rows")
    work = _Work(
        loss=draft_loss(loss),
        head=replace(head, weight=head.weight.detach(), bias=_detached(head.bias)),
        target_hidden=target_hidden.detach(),
        next_ids=next_ids,
        mask=mask,
        denominator=denominator,
        temperature=temperature,
        chunk=chunk or default_chunk(gamma, head),
        kernel=kernel or row_kernel(draft_hidden.device),
    )
    value, alphas = cast("tuple[Tensor, Tensor]", _Fused.apply(draft_hidden, work))
    return FusedDraft(loss=value, alphas=alphas)


def default_chunk(gamma: int, head: LinearHead) -> int:
    """Returns how many anchors fit: logits of the target, of gamma drafts, and a copy made by the head."""
    vocabulary, number = len(head.weight), head.weight.element_size()
    return max(1, _CHUNK_BYTES // (vocabulary * number * (1 + gamma + 1)))


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    loss: DraftLoss
    head: LinearHead
    target_hidden: Tensor
    next_ids: Tensor
    mask: Tensor
    denominator: float
    temperature: float
    chunk: int
    kernel: RowKernel

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden)
        return logits if self.temperature == 1.0 else logits / self.temperature


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, draft_hidden: Tensor, work: _Work) -> tuple[Tensor, Tensor]:
        learns = ctx.needs_input_grad[0]
        gradient = torch.zeros_like(draft_hidden) if learns else None
        alphas = torch.zeros_like(work.mask, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float64)  # chunks add up the same however they are cut
        for start in range(0, len(work.mask), work.chunk):
            part = slice(start, min(start + work.chunk, len(work.mask)))
            loss, alphas[part] = _learn(work, draft_hidden, part, gradient)
            total += loss.double().cpu()
        ctx.gradient = gradient
        ctx.mark_non_differentiable(alphas)
        return total.to(alphas), alphas

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any, of_alphas: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.gradient * grad.to(ctx.gradient.dtype), None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Depth:
    """One depth of a chunk's anchors."""

    hidden: Tensor  # [n, D], a leaf
    logits: Tensor  # [n, V], with the graph that leads back to `hidden`
    target_logits: Tensor
    target_normaliser: Tensor
    token_ids: Tensor
    figures: RowFigures
    logprobs: Tensor  # of `token_ids`


def _learn(work: _Work, draft_hidden: Tensor, part: slice, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns loss and acceptance of the anchors in `part`; fills their rows of `gradient`, [gamma, N, D]."""
    gamma, device = len(draft_hidden), draft_hidden.device
    places = torch.arange(part.start, part.stop + gamma - 1, device=device)
    places = places.clamp_(max=len(work.next_ids) - 1)  # rows beyond are masked
    target = work.logits(work.target_hidden[places])
    normaliser, ids = work.kernel.normaliser(target), work.next_ids[places]
    window = part.stop - part.start
    depths = [
        _depth(
            work,
            draft_hidden[index, part],
            target_logits=target[index : index + window],
            target_normaliser=normaliser[index : index + window],
            token_ids=ids[index : index + window],
            learns=gradient is not None,
        )
        for index in range(gamma)
    ]
    targets = torch.stack(
        [_logprobs(it.target_logits, it.target_normaliser, it.token_ids) for it in depths], 1
    )
    mask = work.mask[part]
    loss, weights = _chains(work, depths, targets, mask)
    if gradient is not None:
        for index, depth in enumerate(depths):
            gradient[index, part] = _back(work, depth, weights[index])
    return loss, torch.where(mask, torch.stack([depth.figures.alphas for depth in depths], 1), 0.0)


def _depth(
    work: _Work,
    hidden: Tensor,
    *,
    target_logits: Tensor,
    target_normaliser: Tensor,
    token_ids: Tensor,
    learns: bool,
) -> _Depth:
    leaf = hidden.detach().requires_grad_(learns)
    with torch.set_grad_enabled(learns):
        logits = work.logits(leaf)
    figures = work.kernel.measure(
        target_logits=target_logits,
        target_normaliser=target_normaliser,
        draft_logits=logits.detach(),
        needs=work.loss.needs,
    )
    return _Depth(
        hidden=leaf,
        logits=logits,
        target_logits=target_logits,
        target_normaliser=target_normaliser,
        token_ids=token_ids,
        figures=figures,
        logprobs=_logprobs(logits.detach(), figures.normaliser, token_ids),
    )


def _logprobs(logits: Tensor, normaliser: Tensor, token_ids: Tensor) -> Tensor:
    return logits.gather(1, token_ids.unsqueeze(1)).squeeze(1).float() - normaliser


def _chains(
    work: _Work, depths: Sequence[_Depth], targets: Tensor, mask: Tensor
) -> tuple[Tensor, list[RowWeights]]:
    """Returns the chains' loss and, per depth, its derivatives by the figures of rows."""
    names = ("alphas", "draft_logprobs", "forward_kl", "reverse_kl")
    columns = (
        [depth.figures.alphas for depth in depths],
        [depth.logprobs for depth in depths],
        [depth.figures.forward_kl for depth in depths],
        [depth.figures.reverse_kl for depth in depths],
    )
    figures = {
        name: torch.stack(column, 1).requires_grad_() for name, column in zip(names, columns, strict=True)
    }
    with torch.enable_grad():
        rows = RowStatistics(target_logprobs=targets, **figures)
        loss = work.loss(rows, mask).sum() / work.denominator
    slopes = dict(zip(names, _gradients(loss, [figures[name] for name in names]), strict=True))
    weights = [
        RowWeights(**{name: slope[:, index] for name, slope in slopes.items()})
        for index in range(len(depths))
    ]
    return loss.detach(), weights


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    found = cast("tuple[Tensor | None, ...]", torch.autograd.grad(loss, leaves, allow_unused=True))
    return [torch.zeros_like(leaf) if it is None else it for it, leaf in zip(found, leaves, strict=True)]


def _back(work: _Work, depth: _Depth, weights: RowWeights) -> Tensor:
    """Returns the derivative by the depth's hidden states; its logits are written over."""
    slopes = depth.logits.detach()
    work.kernel.slope_(
        target_logits=depth.target_logits,
        target_normaliser=depth.target_normaliser,
        draft_logits=slopes,
        token_ids=depth.token_ids,
        figures=depth.figures,
        weights=weights,
        needs=work.loss.needs,
    )
    return torch.autograd.grad(depth.logits, depth.hidden, slopes)[0]
