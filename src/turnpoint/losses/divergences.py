"""Divergences of a student p from a teacher q over the whole vocabulary, named by their gradient.

    forward_kl      KL(q || p)                                d/dz_v = p_v - q_v
    reverse_kl      KL(p || q)                                d/dz_v = p_v (g_v - sum_u p_u g_u), g = log p/q
    jensen_shannon  beta KL(q || m) + (1 - beta) KL(p || m)   the same, g = (1 - beta) log p/m
                    m = beta q + (1 - beta) p

Forward covers whatever the teacher does, reverse stays where the teacher is likely (GKD, arXiv 2306.13649;
MiniLLM, 2306.08543). All are one number per token, nats, at the prefix that was visited: on the student's
own rollouts their sum is differentiated with prefixes held fixed, GKD's gradient, which has no action noise.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from turnpoint.losses.laws import log_laws, with_slope


def forward_kl(
    *, student_logits: Float[Tensor, "*tokens V"], teacher_logits: Float[Tensor, "*tokens V"]
) -> Float[Tensor, "*tokens"]:
    """Returns KL(teacher || student) of each token, nats, differentiable in `student_logits` alone.

    Ids at -inf, padded rows of a head among them, are outside that side's law: 0 * inf is 0 in value and
    gradient, and an id only one side excludes counts as e^-100 (`losses.laws.LOWEST_LOGPROB`). Padded rows
    that hold numbers must be masked by the caller, as `Decoder.logits` does. Raises ValueError for logits
    of different shapes.
    """
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    q = log_q.exp()
    values = _dot(q, log_q.sub_(log_p))
    return with_slope(student_logits, values=values, slope=log_p.exp_().sub_(q))


def reverse_kl(
    *, student_logits: Float[Tensor, "*tokens V"], teacher_logits: Float[Tensor, "*tokens V"]
) -> Float[Tensor, "*tokens"]:
    """Returns KL(student || teacher) of each token, nats, differentiable in `student_logits` alone.

    Its gradient is the expectation of the policy gradient whose advantage is log q(y) - log p(y). What is
    at -inf counts, and what is raised, as in `forward_kl`.
    """
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    gap = log_q.neg_().add_(log_p)
    p = log_p.exp_()
    values = _dot(p, gap)
    return with_slope(student_logits, values=values, slope=gap.sub_(values.unsqueeze(-1)).mul_(p))


def jensen_shannon(
    *, student_logits: Float[Tensor, "*tokens V"], teacher_logits: Float[Tensor, "*tokens V"], beta: float
) -> Float[Tensor, "*tokens"]:
    """Returns the generalised Jensen-Shannon divergence of each token, nats.

    `beta` weighs the teacher, TRL's convention (KDFlow's weighs the student). 0 is `forward_kl` and 1 is
    `reverse_kl` by definition, not as limits: between them the divergence falls to 0 at both ends. Bounded
    by the entropy of (beta, 1 - beta), so that no floor shows. Differentiable in `student_logits` alone;
    raises as `forward_kl` does, and for a beta outside [0, 1].
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta = {beta} is the teacher's share of the mixture; it lies in [0, 1]")
    if beta in (0, 1):
        end = reverse_kl if beta else forward_kl
        return end(student_logits=student_logits, teacher_logits=teacher_logits)
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    above_p = _log_mixture_over_student(log_q - log_p, beta)  # log m/p
    above_q = above_p - (log_q - log_p)
    p, q = log_p.exp_(), log_q.exp_()
    to_student = _dot(p, above_p)  # -KL(p || m)
    slope = (to_student.unsqueeze(-1) - above_p).mul_(p).mul_(1 - beta)
    values = -beta * _dot(q, above_q) - (1 - beta) * to_student
    return with_slope(student_logits, values=values, slope=slope)


def _log_mixture_over_student(gap: Tensor, beta: float) -> Tensor:
    """Returns log m/p for gap = log q/p: exactly 0 at gap 0, and no overflow on either side of it."""
    below = torch.log1p(beta * torch.expm1(gap.clamp(max=0)))
    above = gap + torch.log1p((1 - beta) * torch.expm1(-gap.clamp(min=0)))
    return torch.where(gap > 0, above, below)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return cast(Tensor, torch.linalg.vecdot(left, right))
