"""Distillation over the whole vocabulary from hidden states and both heads, never tokens x vocabulary.

Per chunk of tokens: both products with the heads, the loss, and its slope s by the student's scores; then
s W is the gradient of the hidden states and s' h is added to that of the head in place. Left to autograd,
every chunk would bring a whole [V, D] of its own to be added up, which is larger than its logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

_Values: TypeAlias = Callable[[Tensor, slice], Tensor]


def _as_is(scores: Tensor) -> Tensor:
    return scores


@dataclass(frozen=True)
class LinearHead:
    """Hidden states to logits: finish(hidden W' + bias).

    `weight` is [V, D], the whole of it: a head with an adapter must be merged, which may carry a graph.
    `finish` is what the model does to the product, [n, V] to [n, V]: scale, soft cap, padded ids to -inf.
    It is differentiated through, but holds nothing that trains.
    """

    weight: Tensor
    bias: Tensor | None = None
    finish: Callable[[Tensor], Tensor] = _as_is

    def __call__(self, hidden: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
        """Returns the logits of `hidden`."""
        return self.finish(_product(hidden, self.weight, self.bias))


def chunked_distillation(
    loss: Callable[..., Tensor],
    *,
    student_head: LinearHead,
    student_hidden: Float[Tensor, "N D"],
    teacher_head: LinearHead,
    teacher_hidden: Float[Tensor, "N E"],
    chunk: int,
    temperature: float = 1.0,
    vocab_size: int | None = None,
    **per_token: Tensor,
) -> Float[Tensor, " N"]:
    """Returns what `loss` says of each token, nats, keeping hidden states alone for the backward pass.

    `loss` takes `student_logits` and `teacher_logits`, [n, V], and the rows of each of `per_token`, such as
    `sampled_ids`: any loss of `turnpoint.losses` over a vocabulary, or `distillation_loss(kind)`. At most
    `chunk` rows of logits exist at a time and none outlives its chunk: backward computes them again, one
    more product with each head. Logits of both sides are divided by `temperature`, so that a student
    sampled at T meets a teacher at T. `vocab_size`, the number of ids that the tokenizer knows, cuts heads
    that are padded, each to its own size, before softmax.

    Differentiable once, in `student_hidden` and the student head's weight and bias; of a half-precision
    head the chunks are added up in float32. The teacher's side gets no gradient and keeps no graph. The
    result is a value per token: weigh and sum it as any other loss.

    Raises ValueError for a chunk below 1, a temperature that is not positive, a head with fewer ids than
    `vocab_size`, tensors of different lengths, and what `loss` refuses.
    """
    if chunk < 1 or not temperature > 0:
        raise ValueError(f"chunk = {chunk} and temperature = {temperature} must be positive")
    rows = {"student_hidden": student_hidden, "teacher_hidden": teacher_hidden, **per_token}
    lengths = {name: len(tensor) for name, tensor in rows.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"one row per token in each tensor, got {lengths}")

    def values(scores: Tensor, part: slice) -> Tensor:
        with torch.no_grad():
            teacher_logits = _law(teacher_head(teacher_hidden[part]), temperature, vocab_size)
        return loss(
            student_logits=_law(student_head.finish(scores), temperature, vocab_size),
            teacher_logits=teacher_logits,
            **{name: tensor[part] for name, tensor in per_token.items()},
        )

    head = (student_head.weight, student_head.bias)
    return cast(Tensor, _Chunked.apply(values, chunk, student_hidden, *head))


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: _Values, chunk: int, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.values, ctx.parts = values, _parts(len(hidden), chunk)
        ctx.save_for_backward(hidden, weight, bias)
        found = [values(_product(hidden[part], weight, bias), part) for part in ctx.parts]
        return torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias = cast("tuple[Tensor, Tensor, Tensor | None]", ctx.saved_tensors)
        wanted: tuple[bool, ...] = ctx.needs_input_grad[2:]
        of_hidden, of_weight, of_bias = (
            torch.zeros_like(it, dtype=torch.promote_types(it.dtype, torch.float32))
            if want and it is not None
            else None
            for it, want in zip((hidden, weight, bias), wanted, strict=True)
        )
        for part in ctx.parts:
            rows = hidden[part].detach().requires_grad_()
            slope, of_rows = _slopes(ctx.values, part, rows, weight, bias, grad[part])
            if of_hidden is not None:
                of_hidden[part] = of_rows
            if of_weight is not None:
                _add_product(of_weight, slope.T, rows)
            if of_bias is not None:
                of_bias += slope.sum(0)
        sums = (of_hidden, of_weight, of_bias)
        found = [None if it is None else it.to(weight.dtype) for it in sums]
        return None, None, *found


def _slopes(
    values: _Values, part: slice, rows: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the scores, as they were before `finish` wrote into them, and of `rows`."""
    slopes: list[Tensor] = []
    with torch.enable_grad():
        scores = _product(rows, weight.detach(), None if bias is None else bias.detach())
        scores.register_hook(slopes.append)
        found = values(scores, part)
    of_rows = torch.autograd.grad(found, rows, grad)[0]
    return slopes[0], of_rows


def _parts(length: int, chunk: int) -> list[slice]:
    """Returns the slices of `length` rows; an empty one where there are none."""
    return [slice(start, start + chunk) for start in range(0, max(length, 1), chunk)]


def _product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds left @ right to `total`, in float32 or more whatever the two are multiplied in."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _law(logits: Tensor, temperature: float, vocab_size: int | None) -> Tensor:
    """Returns logits at `temperature` of the first `vocab_size` ids."""
    if vocab_size is not None:
        if logits.shape[-1] < vocab_size:
            raise ValueError(f"a head of {logits.shape[-1]} ids for a tokenizer that knows {vocab_size}")
        logits = logits[..., :vocab_size]
    return logits if temperature == 1.0 else logits / temperature
