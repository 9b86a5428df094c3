"""CISPO and reinforce: the bounded ratio is a constant weight of log p, and no token loses its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.tokens import Tokens, batch, policy_loss, value_and_gradient
from turnpoint.losses import truncated_weights

cispo = policy_loss(objective="cispo")


@given(n=st.integers(0, 20), seed=st.integers(0, 500), low=st.sampled_from([1.0, 0.2]))
def test_equals_the_loop(n: int, seed: int, low: float) -> None:
    tokens = batch(n, seed=seed)
    expected, total, bounded = torch.zeros(n, dtype=torch.float64), 0.0, 0
    for t in tokens["mask"].nonzero().squeeze(1).tolist():
        ratio = math.exp(float(tokens["logprobs"].detach()[t] - tokens["old_logprobs"][t]))
        weight = min(max(ratio, 1 - low), 1.28)
        bounded += weight != ratio
        expected[t] = -tokens["weights"][t] * weight * tokens["advantages"][t] / 7.0
        total += float(expected[t] * tokens["logprobs"].detach()[t])
    loss = policy_loss(objective="cispo", clip_low=low)
    value, gradient = value_and_gradient(loss, tokens)
    torch.testing.assert_close(gradient, expected)
    assert value.item() == pytest.approx(total)
    share = loss(tokens, 7.0)[1]["clip_fraction"].value
    assert (share or 0.0) == pytest.approx(bounded / max(int(tokens["mask"].sum()), 1))


@pytest.mark.parametrize(
    ("ratio", "weight"), [(1.27, 1.27), (1.29, 1.28), (99.0, 1.28), (0.01, 0.01), (1.0, 1.0)]
)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_every_token_keeps_its_gradient_bounded_above_alone(
    ratio: float, weight: float, advantage: float
) -> None:
    tokens = single(math.log(ratio), advantage)
    _, gradient = value_and_gradient(cispo, tokens, 1.0)
    assert gradient.item() == pytest.approx(-weight * advantage)
    assert cispo(tokens, 1.0)[1]["clip_fraction"].value == float(weight != ratio)


def single(log_ratio: float, advantage: float) -> Tokens:
    old = torch.tensor([-5.0], dtype=torch.float64)
    return {
        "logprobs": (old + log_ratio).requires_grad_(),
        "old_logprobs": old,
        "advantages": torch.tensor([advantage], dtype=torch.float64),
        "mask": torch.tensor([True]),
    }


def test_numerical_gradient_at_a_fixed_weight() -> None:
    tokens = batch(30)
    log_ratio = (tokens["logprobs"] - tokens["old_logprobs"]).detach()

    def loss_of(values: Tensor) -> Tensor:
        return cispo({**tokens, "logprobs": values, "old_logprobs": values.detach() - log_ratio}, 7.0)[0]

    assert torch.autograd.gradcheck(loss_of, tokens["logprobs"])


def test_a_ratio_beyond_floats_is_bounded() -> None:
    tokens = {n: t.detach().float() if t.is_floating_point() else t for n, t in single(1e4, 1.0).items()}
    tokens["logprobs"].requires_grad_()
    assert value_and_gradient(cispo, tokens, 1.0)[1].item() == pytest.approx(-1.28)


@pytest.mark.parametrize(("ratio", "weight"), [(1.9, 1.9), (2.1, 2.0), (99.0, 2.0), (0.01, 0.01)])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_reinforce_weighs_by_the_ratio_truncated_as_importance_weights_are(
    ratio: float, weight: float, advantage: float
) -> None:
    tokens, reinforce = single(math.log(ratio), advantage), policy_loss(objective="reinforce")
    value, gradient = value_and_gradient(reinforce, tokens, 1.0)
    weights, metrics = truncated_weights(
        old_logprobs=tokens["logprobs"],
        behaviour_logprobs=tokens["old_logprobs"],
        mask=tokens["mask"],
    )
    assert gradient.item() == pytest.approx(-weight * advantage)
    assert weights.item() == pytest.approx(weight)
    assert value.item() == pytest.approx(-weight * advantage * float(tokens["logprobs"].detach()))
    share = reinforce(tokens, 1.0)[1]["clip_fraction"].value
    assert share == metrics["correction_truncated"].value == float(weight != ratio)


def test_reinforce_is_cispo_at_its_own_cap() -> None:
    tokens = batch(40)
    wide = policy_loss(objective="cispo", clip_high=3.0)
    tight = policy_loss(objective="reinforce", clip_high=3.0)
    torch.testing.assert_close(value_and_gradient(tight, tokens), value_and_gradient(wide, tokens))
