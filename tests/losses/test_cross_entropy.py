"""Cross-entropy: hand values, torch's own, and what it does not read."""

from __future__ import annotations

import pytest
import torch

from tests.losses.tokens import LOSSES, batch, value_and_gradient
from turnpoint.losses import cross_entropy_loss
from turnpoint.metrics import Mean
from turnpoint.protocols import Loss

cross_entropy = LOSSES["cross-entropy"]


def test_equals_torch() -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits.requires_grad_()
    targets = torch.tensor([0, 4, 2, 2, 1, 3])
    theirs = torch.nn.functional.cross_entropy(logits, targets)
    tokens = batch(6)
    tokens |= {"mask": torch.ones(6, dtype=torch.bool), "weights": None}
    tokens["logprobs"] = logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    ours, metrics = cross_entropy(tokens, 6.0)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits, retain_graph=True), torch.autograd.grad(theirs, logits)
    )
    assert metrics["cross_entropy"].value == pytest.approx(theirs.item())


def test_hand_values() -> None:
    loss: Loss = cross_entropy_loss
    nothing = torch.full((3,), torch.nan)
    value, metrics = loss(
        logprobs=torch.tensor([-1.0, -2.0, torch.nan]),
        old_logprobs=nothing,
        advantages=nothing,
        mask=torch.tensor([True, True, False]),
        denominator=4.0,
        sequence_ids=torch.zeros(3, dtype=torch.int64),
        weights=torch.tensor([1.0, 0.5, torch.nan]),
    )
    assert value.item() == pytest.approx((1.0 + 0.5 * 2.0) / 4)
    assert metrics == {"cross_entropy": Mean(3.0, 2)}  # weights do not change what is reported


def test_is_the_gradient_of_imitation() -> None:
    tokens = batch(9)
    _, gradient = value_and_gradient(cross_entropy, tokens)
    torch.testing.assert_close(gradient, -torch.where(tokens["mask"], tokens["weights"], 0.0) / 7.0)
