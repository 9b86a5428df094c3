"""Laws small enough to enumerate, and how losses over a vocabulary are called on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from turnpoint.losses import distillation_loss

# Three ids on which every direction and truncation differs.
STUDENT = torch.tensor([0.78, 0.02, 0.20], dtype=torch.float64)
TEACHER = torch.tensor([0.49, 0.49, 0.02], dtype=torch.float64)
REVERSE_GRADIENT = torch.tensor([-0.22953, -0.07916, 0.30869], dtype=torch.float64)
FORWARD_GRADIENT = torch.tensor([0.29, -0.47, 0.18], dtype=torch.float64)

RowLoss: TypeAlias = Callable[..., Tensor]

# Every kind, called as `loss(student_logits=, teacher_logits=, sampled_ids=)`.
KINDS: dict[str, RowLoss] = {
    "forward_kl": distillation_loss("forward_kl"),
    "reverse_kl": distillation_loss("reverse_kl"),
    "jensen_shannon": distillation_loss("jensen_shannon", beta=0.3),
    "reverse_kl_topk_hybrid": distillation_loss("reverse_kl_topk_hybrid", k=2),
    "reverse_kl_topk_tail": distillation_loss("reverse_kl_topk_tail", k=2),
    "forward_kl_topk_tail": distillation_loss("forward_kl_topk_tail", k=2),
    "k2": distillation_loss("k2"),
}


def rows(n: int, size: int, *, seed: int = 0, scale: float = 2.0) -> dict[str, Tensor]:
    """Returns n tokens: logits of both sides over `size` ids, and an id each."""
    draws = torch.Generator().manual_seed(seed)
    student, teacher = (scale * torch.randn(n, size, generator=draws, dtype=torch.float64) for _ in range(2))
    return {
        "student_logits": student.requires_grad_(),
        "teacher_logits": teacher,
        "sampled_ids": torch.randint(size, (n,), generator=draws),
    }


def toy(**options: Any) -> dict[str, Any]:
    """Returns the laws of three ids as what a loss takes; `options` come on top."""
    return {"student_logits": STUDENT.log().requires_grad_(), "teacher_logits": TEACHER.log(), **options}


def value_and_slope(loss: RowLoss, tokens: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token, and the gradient of their sum by the student's logits."""
    values = loss(**tokens)
    leaf: Tensor = tokens["student_logits"]
    return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]


def by_autograd(kind: str, *, beta: float = 0.3, k: int = 2) -> RowLoss:
    """Returns the textbook sum over the vocabulary, left to autograd; finite laws only."""
    return partial(_plain, kind, beta, k)


def _plain(kind: str, beta: float, k: int, *, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    log_p, log_q = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    if kind.endswith("_tail"):
        best = (student_logits if kind.startswith("reverse") else teacher_logits).topk(k).indices
        log_p, log_q = (_coarse(law, best) for law in (log_p, log_q))
    p, q = log_p.exp(), log_q.exp()
    if kind.startswith("forward"):
        return (q * (log_q - log_p)).sum(-1)
    if kind.startswith("reverse"):
        return (p * (log_p - log_q)).sum(-1)
    log_m = (beta * q + (1 - beta) * p).log()
    return (beta * q * (log_q - log_m) + (1 - beta) * p * (log_p - log_m)).sum(-1)


def _coarse(law: Tensor, best: Tensor) -> Tensor:
    inside = law.gather(-1, best)
    return torch.cat([inside, (1 - inside.exp().sum(-1, keepdim=True)).log()], -1)
