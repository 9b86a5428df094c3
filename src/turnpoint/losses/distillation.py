"""Distillation losses by name, all called alike, and why other names are refused.

kind                    K                  needs a sample  gradient
forward_kl              all ids            no              of KL(q || p)
reverse_kl              all ids            no              of KL(p || q)
jensen_shannon          all ids            no              of its mixture, by beta
reverse_kl_topk_hybrid  student's top k    yes             of KL(p || q), unbiased
reverse_kl_topk_tail    student's top k    no              of a lower bound of KL(p || q)
forward_kl_topk_tail    teacher's top k    no              of a lower bound of KL(q || p)
k2                      the sampled id     yes             of KL(p || q), unbiased
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.losses.divergences import forward_kl, jensen_shannon, reverse_kl
from turnpoint.losses.laws import log_laws, with_slope
from turnpoint.losses.refused import REFUSED
from turnpoint.losses.sampled import k2
from turnpoint.losses.topk import forward_kl_topk_tail, reverse_kl_topk_hybrid, reverse_kl_topk_tail

TOPK = ("reverse_kl_topk_hybrid", "reverse_kl_topk_tail", "forward_kl_topk_tail")
SAMPLED = ("reverse_kl_topk_hybrid", "k2")


@runtime_checkable
class DistillationLoss(Protocol):
    """What `distillation_loss` returns; a kind that needs no sample reads no ids and no weights."""

    def __call__(
        self,
        *,
        student_logits: Float[Tensor, "*tokens V"],
        teacher_logits: Float[Tensor, "*tokens V"],
        sampled_ids: Int[Tensor, "*tokens"],
        weights: Float[Tensor, "*tokens"] | None = None,
    ) -> Float[Tensor, "*tokens"]:
        """Returns one value per token, differentiable in `student_logits` alone."""
        ...


_Rows: TypeAlias = Callable[..., Tensor]


def distillation_loss(
    kind: str, *, k: int | None = None, beta: float | None = None, on_policy: bool = True
) -> DistillationLoss:
    """Returns the loss called `kind`, with the `k` or the `beta` that it alone takes.

    With `on_policy` False the tokens were drawn from another law than the student's, and the kinds that
    need a sample refuse to be called without importance weights; without a sample nothing is corrected.

    Raises ValueError for an unknown kind, for one of `REFUSED` with the reason, and for a `k` or `beta`
    that is missing or belongs to another kind.
    """
    check_kind(kind)
    options: dict[str, float] = {}
    for name, given, taken in (("k", k, kind in TOPK), ("beta", beta, kind == "jensen_shannon")):
        if taken and given is None:
            raise ValueError(f"{kind} needs {name}")
        if given is not None and not taken:
            raise ValueError(f"{name} = {given} says nothing to {kind}; leave it out")
        if given is not None:
            options[name] = given
    rows = partial(_ROWS[kind], **options)
    return partial(_sampled, rows, kind, on_policy) if kind in SAMPLED else partial(_whole, rows)


def check_kind(kind: str) -> None:
    """Raises ValueError for a name that is no kind of loss, with the reason where it is a known mistake."""
    if kind in REFUSED:
        raise ValueError(f"distillation loss {kind!r} is refused: {REFUSED[kind]}")
    if kind not in KINDS:
        raise ValueError(f"unknown distillation loss {kind!r}; known: {', '.join(KINDS)}")


def _whole(
    rows: _Rows,
    *,
    student_logits: Tensor,
    teacher_logits: Tensor,
    sampled_ids: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    return rows(student_logits=student_logits, teacher_logits=teacher_logits)


def _sampled(
    rows: _Rows,
    kind: str,
    on_policy: bool,
    *,
    student_logits: Tensor,
    teacher_logits: Tensor,
    sampled_ids: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    if weights is None and not on_policy:
        raise ValueError(f"{kind} on tokens of another law needs importance weights, p / p_behaviour")
    return rows(
        student_logits=student_logits,
        teacher_logits=teacher_logits,
        sampled_ids=sampled_ids,
        weights=weights,
    )


def _k2_of_rows(
    *, student_logits: Tensor, teacher_logits: Tensor, sampled_ids: Tensor, weights: Tensor | None
) -> Tensor:
    log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
    drawn = sampled_ids.unsqueeze(-1)
    student, teacher = (laws.gather(-1, drawn) for laws in (log_p, log_q))
    slope = log_p.exp_().neg_()
    slope.scatter_add_(-1, drawn, torch.ones_like(student))
    return k2(
        student_logprobs=with_slope(student_logits, values=student.squeeze(-1), slope=slope),
        teacher_logprobs=teacher.squeeze(-1),
        weights=weights,
    )


_ROWS: dict[str, _Rows] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "reverse_kl_topk_hybrid": reverse_kl_topk_hybrid,
    "reverse_kl_topk_tail": reverse_kl_topk_tail,
    "forward_kl_topk_tail": forward_kl_topk_tail,
    "k2": _k2_of_rows,
}
KINDS = tuple(_ROWS)
