"""Figures of two laws on the way through a loss over them, by hand and once for every token."""

from __future__ import annotations

import math

import pytest
import torch

from turnpoint.losses import distillation_loss
from turnpoint.losses.chunked import LinearHead, chunked_distillation
from turnpoint.training.vocabulary import Watched

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
Q = torch.tensor([[0.2, 0.2, 0.6], [0.1, 0.1, 0.8]])


@pytest.mark.parametrize("chunk", [1, 2])
def test_the_figures_by_hand_and_backward_counts_nothing_twice(chunk: int) -> None:
    watched = Watched(distillation_loss("reverse_kl_topk_hybrid", k=2), k=2)
    hidden = P.log().requires_grad_()
    values = chunked_distillation(
        watched,
        student_head=LinearHead(torch.eye(3)),
        student_hidden=hidden,
        teacher_head=LinearHead(torch.eye(3)),
        teacher_hidden=Q.log(),
        chunk=chunk,
        sampled_ids=torch.tensor([0, 2]),
    )
    before = watched.metrics()
    values.sum().backward()
    assert watched.metrics() == before
    kl = 0.5 * math.log(2.5) + 0.3 * math.log(1.5) + 0.2 * math.log(1 / 3)
    found = {name: metric.value for name, metric in before.items()}
    assert found == {
        "teacher/kl_exact": pytest.approx(kl / 2, abs=1e-6),
        "teacher/entropy": pytest.approx(-float((Q * Q.log()).sum()) / 2, abs=1e-6),
        "teacher/mass_policy": pytest.approx((0.8 + 0.9) / 2, abs=1e-6),
        "teacher/mass_teacher": pytest.approx((0.4 + 0.9) / 2, abs=1e-6),
    }


def test_a_loss_that_is_exact_on_no_tokens_has_no_mass() -> None:
    watched = Watched(distillation_loss("reverse_kl"), k=None)
    with torch.no_grad():
        watched(student_logits=P.log(), teacher_logits=Q.log(), sampled_ids=torch.tensor([0, 2]))
    assert set(watched.metrics()) == {"teacher/kl_exact", "teacher/entropy"}
