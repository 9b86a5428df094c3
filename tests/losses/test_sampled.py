"""k2: hand values, the gradient of the sampled-token signal, weights, extremes."""

from __future__ import annotations

import math

import pytest
import torch

from tests.losses.toys import REVERSE_GRADIENT, STUDENT, TEACHER
from turnpoint.losses import k2


def test_hand_values() -> None:
    values = k2(student_logprobs=STUDENT.log(), teacher_logprobs=TEACHER.log())
    assert values.tolist() == pytest.approx(
        [math.log(0.78 / 0.49) ** 2 / 2, math.log(0.02 / 0.49) ** 2 / 2, math.log(0.20 / 0.02) ** 2 / 2]
    )
    assert (STUDENT * values).sum().item() == pytest.approx(0.71679, abs=1e-5)  # not the divergence, .75916


def test_the_mean_gradient_is_that_of_the_reverse_kl() -> None:
    logits = STUDENT.log().requires_grad_()
    values = k2(student_logprobs=logits.log_softmax(0), teacher_logprobs=TEACHER.log(), weights=STUDENT)
    slope = torch.autograd.grad(values.sum(), logits)[0]
    torch.testing.assert_close(slope, REVERSE_GRADIENT, rtol=0, atol=1e-5)


def test_its_value_as_an_advantage_follows_another_divergence() -> None:
    logits = STUDENT.log().requires_grad_()
    logprobs = logits.log_softmax(0)
    advantage = k2(student_logprobs=logprobs, teacher_logprobs=TEACHER.log()).detach()
    slope = torch.autograd.grad((STUDENT * advantage * logprobs).sum(), logits)[0]
    expected = torch.tensor([-0.47481, 0.08798, 0.38683], dtype=torch.float64)
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-5)


def test_the_impossible_is_finite() -> None:
    student = torch.tensor([-1.0, -1.0, -math.inf], requires_grad=True)
    values = k2(student_logprobs=student, teacher_logprobs=torch.tensor([-1.5, -math.inf, -math.inf]))
    assert values.tolist() == pytest.approx([0.125, 99.0**2 / 2, 0.0])
    assert torch.autograd.grad(values.sum(), student)[0].tolist() == pytest.approx([0.5, 99.0, 0.0])


def test_only_the_student_is_differentiated() -> None:
    student, teacher, weights = (torch.tensor([-1.0], requires_grad=True) for _ in range(3))
    k2(student_logprobs=student, teacher_logprobs=teacher * 2, weights=weights).sum().backward()
    assert student.grad is not None
    assert teacher.grad is None
    assert weights.grad is None
