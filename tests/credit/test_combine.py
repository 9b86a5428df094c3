"""Task advantage plus teacher signal."""

from __future__ import annotations

import inspect

import pytest
import torch

from turnpoint.credit import combine_advantages

TASK = torch.tensor([0.5, -0.5, 0.0])
SIGNAL = torch.tensor([-2.0, 1.0, 0.25])


def test_hand_values() -> None:
    assert combine_advantages(TASK, SIGNAL, coef=0.5).tolist() == [-0.5, 0.0, 0.125]
    assert combine_advantages(None, SIGNAL, coef=2.0).tolist() == [-4.0, 2.0, 0.5]
    assert combine_advantages(TASK, SIGNAL, coef=0.0).tolist() == TASK.tolist()
    per_token = torch.tensor([0.0, 1.0, 2.0])
    assert combine_advantages(TASK, SIGNAL, coef=per_token).tolist() == [0.5, 0.5, 0.5]


def test_scale_of_the_signal_is_kept() -> None:
    # whitening the sum would give both the same size, and coef no meaning
    near, far = (combine_advantages(None, scale * SIGNAL, coef=1.0) for scale in (0.01, 1.0))
    torch.testing.assert_close(far, 100 * near)


def test_advantages_are_constants_for_autograd() -> None:
    task, signal = TASK.clone().requires_grad_(), SIGNAL.clone().requires_grad_()
    assert not combine_advantages(task, signal, coef=1.0).requires_grad
    assert not combine_advantages(None, signal, coef=1.0).requires_grad


def test_inputs_are_left_alone() -> None:
    before = TASK.clone()
    combine_advantages(TASK, SIGNAL, coef=1.0)
    assert torch.equal(before, TASK)


def test_nothing_is_broadcast() -> None:
    with pytest.raises(ValueError, match="one value per token each"):
        inspect.unwrap(combine_advantages)(TASK, SIGNAL[:1], coef=1.0)  # without the tests' own shape check
