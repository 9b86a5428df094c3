"""Distillation over the whole vocabulary from hidden states and both heads, never tokens x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils import checkpoint


def chunked_distillation(
    loss: Callable[..., Tensor],
    *,
    student_head: Callable[[Tensor], Tensor],
    student_hidden: Float[Tensor, "N D"],
    teacher_head: Callable[[Tensor], Tensor],
    teacher_hidden: Float[Tensor, "N E"],
    chunk: int,
    temperature: float = 1.0,
    vocab_size: int | None = None,
    **per_token: Tensor,
) -> Float[Tensor, " N"]:
    """Returns what `loss` says of each token, nats, keeping hidden states alone for the backward pass.

    `loss` takes `student_logits` and `teacher_logits`, [n, V], and the rows of each of `per_token`, such as
    `sampled_ids`: any loss of `turnpoint.losses` over a vocabulary, or `distillation_loss(kind)`. A head
    maps [n, D] to [n, V], as `Decoder.logits` does. At most `chunk` rows of logits exist at a time and none
    outlives its chunk: backward computes them again, one more product with each head. Logits of both sides
    are divided by `temperature`, so that a student sampled at T meets a teacher at T. `vocab_size`, the
    number of ids that the tokenizer knows, cuts heads that are padded, each to its own size, before softmax.

    Differentiable in `student_hidden` and in what `student_head` holds; the teacher's side gets no gradient
    and keeps no graph. The result is a value per token: weigh and sum it as any other loss.

    Raises ValueError for a chunk below 1, a temperature that is not positive, a head with fewer ids than
    `vocab_size`, tensors of different lengths, and what `loss` refuses.
    """
    if chunk < 1 or not temperature > 0:
        raise ValueError(f"chunk = {chunk} and temperature = {temperature} must be positive")
    rows = {"student_hidden": student_hidden, "teacher_hidden": teacher_hidden.detach(), **per_token}
    lengths = {name: len(tensor) for name, tensor in rows.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"one row per token in each tensor, got {lengths}")

    def part(student_hidden: Tensor, teacher_hidden: Tensor, *rest: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = _law(teacher_head(teacher_hidden), temperature, vocab_size)
        return loss(
            student_logits=_law(student_head(student_hidden), temperature, vocab_size),
            teacher_logits=teacher_logits,
            **dict(zip(per_token, rest, strict=True)),
        )

    run = cast("Callable[..., Tensor]", checkpoint.checkpoint)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    pieces = zip(*(torch.split(tensor, chunk) for tensor in rows.values()), strict=True)
    return torch.cat([run(part, *piece, **options) for piece in pieces])


def _law(logits: Tensor, temperature: float, vocab_size: int | None) -> Tensor:
    """Returns logits at `temperature` of the first `vocab_size` ids."""
    if vocab_size is not None:
        if logits.shape[-1] < vocab_size:
            raise ValueError(f"a head of {logits.shape[-1]} ids for a tokenizer that knows {vocab_size}")
        logits = logits[..., :vocab_size]
    return logits if temperature == 1.0 else logits / temperature
