"""The sampled-token signal: hand values, its expected gradient by enumeration, masks and clips."""

from __future__ import annotations

import math

import pytest
import torch

from turnpoint.losses import policy_gradient_loss
from turnpoint.metrics import merge_metrics, metric_values
from turnpoint.teachers import sampled_token_signal, signal_metrics

STUDENT = torch.tensor([0.78, 0.02, 0.20], dtype=torch.float64)
TEACHER = torch.tensor([0.49, 0.49, 0.02], dtype=torch.float64)


def test_hand_values() -> None:
    signal = sampled_token_signal(student_logprobs=STUDENT.log(), teacher_logprobs=TEACHER.log())
    expected = [math.log(0.49 / 0.78), math.log(0.49 / 0.02), math.log(0.02 / 0.20)]
    assert signal.tolist() == pytest.approx(expected)


def test_is_detached_from_both() -> None:
    student, teacher = STUDENT.log().requires_grad_(), TEACHER.log().requires_grad_()
    assert not sampled_token_signal(student_logprobs=student, teacher_logprobs=teacher).requires_grad
    masked = sampled_token_signal(
        student_logprobs=student, teacher_logprobs=teacher, mask=torch.tensor([True, False, True]), clip=1.0
    )
    assert not masked.requires_grad


def test_expected_gradient_is_that_of_the_reverse_kl() -> None:
    # every id once, weighted by its probability under the student
    logits = STUDENT.log().requires_grad_()
    logprobs = logits.log_softmax(0)
    reverse_kl = (logprobs.exp() * (logprobs - TEACHER.log())).sum()
    truth = torch.autograd.grad(reverse_kl, logits, retain_graph=True)[0]
    loss, _ = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        advantages=sampled_token_signal(student_logprobs=logprobs, teacher_logprobs=TEACHER.log()),
        mask=torch.ones(3, dtype=torch.bool),
        denominator=1.0,
        weights=STUDENT,
    )
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], truth)
    torch.testing.assert_close(
        truth, torch.tensor([-0.22953, -0.07916, 0.30869], dtype=torch.float64), rtol=0, atol=1e-5
    )


def test_clip_is_symmetric_in_nats_and_tames_the_impossible() -> None:
    student = torch.tensor([-1.0, -1.0, -9.0, -1.0])
    teacher = torch.tensor([-1.5, -8.0, -1.0, -math.inf])
    signal = sampled_token_signal(student_logprobs=student, teacher_logprobs=teacher, clip=5.0)
    assert signal.tolist() == [-0.5, -5.0, 5.0, -5.0]


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_refuses_a_clip_that_is_no_bound(clip: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        sampled_token_signal(student_logprobs=STUDENT, teacher_logprobs=TEACHER, clip=clip)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_masked_positions_are_zero_whatever_stands_there(clip: float | None) -> None:
    student = torch.tensor([-1.0, math.nan, 0.0, -math.inf])
    teacher = torch.tensor([-1.25, 0.0, math.nan, -math.inf])
    mask = torch.tensor([True, False, False, False])
    signal = sampled_token_signal(student_logprobs=student, teacher_logprobs=teacher, mask=mask, clip=clip)
    assert signal.tolist() == [-0.25, 0.0, 0.0, 0.0]


def test_any_shape() -> None:
    rows = sampled_token_signal(student_logprobs=torch.zeros(2, 3), teacher_logprobs=torch.ones(2, 3))
    assert rows.shape == (2, 3)


# --- floor and metrics --------------------------------------------------------------------------


def test_without_a_clip_the_impossible_is_a_hundred_nats() -> None:
    student = torch.tensor([-1.0, -1.0, -math.inf, -math.inf])
    teacher = torch.tensor([-math.inf, -250.0, -2.0, -math.inf])
    signal = sampled_token_signal(student_logprobs=student, teacher_logprobs=teacher)
    assert signal.tolist() == [-99.0, -99.0, 98.0, 0.0]


def test_a_nan_is_not_hidden() -> None:
    student = torch.tensor([-1.0, math.nan])
    teacher = torch.tensor([math.nan, -1.0])
    assert sampled_token_signal(student_logprobs=student, teacher_logprobs=teacher, clip=1.0).isnan().all()


def test_metrics_by_hand() -> None:
    metrics = signal_metrics(
        student_logprobs=torch.tensor([-1.0, -1.0, -9.0, -1.0, math.nan]),
        teacher_logprobs=torch.tensor([-1.5, -8.0, -1.0, -math.inf, math.nan]),
        mask=torch.tensor([True, True, True, True, False]),
        clip=5.0,
    )
    assert metric_values(metrics) == pytest.approx(
        {
            "signal_kl": (0.5 + 7.0 - 8.0 + 99.0) / 4,
            "signal_clipped": 0.75,
            "signal_floored": 1.0,
            "signal_size_median": 7.5,
            "signal_size_p99": 8.0 + 0.97 * 91.0,
        }
    )


def test_metrics_of_parts_are_those_of_the_step() -> None:
    student, teacher = torch.randn(20), torch.randn(20)
    whole, first, second = (
        signal_metrics(student_logprobs=student[part], teacher_logprobs=teacher[part], clip=1.0)
        for part in (slice(None), slice(7), slice(7, None))
    )
    assert metric_values(merge_metrics([first, second])) == pytest.approx(metric_values(whole))


def test_metrics_of_nothing_are_absent() -> None:
    nothing = torch.zeros(3)
    metrics = signal_metrics(
        student_logprobs=nothing, teacher_logprobs=nothing, mask=torch.zeros(3, dtype=torch.bool)
    )
    assert metric_values(metrics) == {"signal_floored": 0.0}


def test_the_mean_metric_is_the_reverse_kl() -> None:
    gaps = [
        signal_metrics(student_logprobs=STUDENT[[at]].log(), teacher_logprobs=TEACHER[[at]].log())
        for at in range(3)
    ]
    expected = sum(
        p * (metrics["signal_kl"].value or 0.0) for p, metrics in zip((0.78, 0.02, 0.2), gaps, strict=True)
    )
    assert expected == pytest.approx(0.759157, abs=1e-6)
