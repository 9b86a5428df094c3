"""Next-token laws of a student and a teacher, and row losses whose gradient is known in closed form.

Every loss of distillation over a vocabulary is a function of two rows of logits, and its derivative by the
student's logits z is short to write down. Computing that slope beside the value, instead of letting autograd
retrace softmax, products and sums, keeps one [.., V] for the backward pass, is exactly 0 where the laws are
equal, and has no 0 * inf in it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

LOWEST_LOGPROB = -100.0
"""Nats. No log-probability counts as lower, -inf included: e^-100 is where float32 ends (e^-103), so that
an id one side finds impossible costs the other 100 nats times its probability, and 0 where that is 0."""


def floored(logprobs: Tensor) -> Tensor:
    """Returns `logprobs`, nats, detached, none below `LOWEST_LOGPROB`; NaN stays."""
    return logprobs.detach().clamp(min=LOWEST_LOGPROB)


def log_laws(
    *, student_logits: Float[Tensor, "*tokens V"], teacher_logits: Float[Tensor, "*tokens V"]
) -> tuple[Float[Tensor, "*tokens V"], Float[Tensor, "*tokens V"]]:
    """Returns log p of the student and log q of the teacher, in nats, detached, at least in float32.

    Raises ValueError where they are not rows of one vocabulary: nothing is cut and nothing broadcast.
    """
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student logits {list(student_logits.shape)} and teacher logits {list(teacher_logits.shape)} "
            f"are not over the same tokens and ids; cut both to the ids that the tokenizer knows"
        )
    dtype = torch.promote_types(
        torch.promote_types(student_logits.dtype, teacher_logits.dtype), torch.float32
    )
    student, teacher = (
        torch.log_softmax(logits.detach(), dim=-1, dtype=dtype).clamp_(min=LOWEST_LOGPROB)
        for logits in (student_logits, teacher_logits)
    )
    return student, teacher


def with_slope(
    logits: Float[Tensor, "*tokens V"], *, values: Float[Tensor, "*tokens"], slope: Float[Tensor, "*tokens V"]
) -> Float[Tensor, "*tokens"]:
    """Returns `values`, whose derivative by `logits` is `slope`; there is no second derivative."""
    return cast(Tensor, _WithSlope.apply(logits, values, slope))


class _WithSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope.to(logits.dtype))
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (slope,) = cast("tuple[Tensor]", ctx.saved_tensors)
        return slope * grad.unsqueeze(-1).to(slope.dtype), None, None
