"""PPO-clip as mathematics: values, gradients, clip regions, dual clip; what all objectives refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.tokens import Tokens, batch, policy_loss
from turnpoint.losses import policy_gradient_loss
from turnpoint.metrics import metric_values
from turnpoint.protocols import Loss

OBJECTIVES = ("ppo_clip", "gspo", "cispo", "reinforce")
ppo_clip = policy_loss()


def loop(
    tokens: Tokens, denominator: float, low: float = 0.2, high: float = 0.28, dual: float = math.inf
) -> float:
    """The papers' equations, one token at a time."""
    total = 0.0
    columns = [
        tokens[name].tolist() for name in ("logprobs", "old_logprobs", "advantages", "mask", "weights")
    ]
    for logprob, old, advantage, kept, weight in zip(*columns, strict=True):
        if kept:
            ratio = math.exp(logprob - old)
            clipped = min(max(ratio, 1 - low), 1 + high)
            surrogate = min(ratio * advantage, clipped * advantage)
            total -= weight * (max(surrogate, dual * advantage) if advantage < 0 else surrogate)
    return total / denominator


# --- values -------------------------------------------------------------------------------------


def test_hand_values() -> None:
    # ratios 1.5, 1.5, 0.5, 0.5 at advantages +1, -1, +1, -1: min(rho A, clip(rho) A)
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5], dtype=torch.float64).log()
    loss, metrics = policy_gradient_loss(
        logprobs=log_ratio - 1,
        old_logprobs=torch.full((4,), -1.0, dtype=torch.float64),
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64),
        mask=torch.ones(4, dtype=torch.bool),
        denominator=4.0,
    )
    assert loss.item() == pytest.approx(-(1.28 - 1.5 + 0.5 - 0.8) / 4)
    k3 = [r - 1 - math.log(r) for r in (1.5, 1.5, 0.5, 0.5)]
    assert metric_values(metrics) == pytest.approx(
        {"clip_fraction": 0.5, "ratio_mean": 1.0, "ratio_deviation": 0.5, "approx_kl": sum(k3) / 4}
    )


@given(n=st.integers(1, 12), seed=st.integers(0, 1000), denominator=st.floats(0.1, 100))
def test_equals_the_loop(n: int, seed: int, denominator: float) -> None:
    tokens = batch(n, seed=seed)
    loss, _ = ppo_clip(tokens, denominator)
    assert loss.item() == pytest.approx(loop(tokens, denominator), rel=1e-9, abs=1e-12)
    loss, _ = policy_loss(dual_clip=1.4)(tokens, denominator)
    assert loss.item() == pytest.approx(loop(tokens, denominator, dual=1.4), rel=1e-9, abs=1e-12)


def test_clips_are_arguments() -> None:
    tokens = batch(40)
    loss, _ = policy_loss(clip_low=0.05, clip_high=0.5)(tokens, 5.0)
    assert loss.item() == pytest.approx(loop(tokens, 5.0, 0.05, 0.5))
    only_low, _ = policy_loss(clip_low=0.05)(tokens, 5.0)
    assert only_low.item() == pytest.approx(loop(tokens, 5.0, 0.05, 0.28))
    never, _ = policy_loss(clip_low=1.0, clip_high=math.inf)(tokens, 5.0)
    assert never.item() == pytest.approx(loop(tokens, 5.0, 1.0, math.inf))


# --- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dual_clip", [None, 1.4])
def test_numerical_gradient(dual_clip: float | None) -> None:
    tokens = batch(30)

    def loss_of(values: Tensor) -> Tensor:
        return policy_loss(dual_clip=dual_clip)({**tokens, "logprobs": values}, 7.0)[0]

    assert torch.autograd.gradcheck(loss_of, tokens["logprobs"])


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "moves"),
    [
        (1.27, 1.0, None, True),
        (1.29, 1.0, None, False),  # already much likelier and good: leave it
        (1.29, -1.0, None, True),  # much likelier and bad: always pulled back
        (99.0, -1.0, None, True),
        (0.81, -1.0, None, True),
        (0.79, -1.0, None, False),  # already much rarer and bad: leave it
        (0.79, 1.0, None, True),  # much rarer and good: always pulled back
        (1.00, 1.0, None, True),
        (1.00, -1.0, None, True),
        (9.00, 0.0, None, False),
        (2.99, -1.0, 3.0, True),
        (3.01, -1.0, 3.0, False),  # so much likelier that one token would dominate the step
        (0.79, -1.0, 3.0, False),
        (1.29, 1.0, 3.0, False),
        (9.00, 0.0, 3.0, False),
    ],
)
def test_clip_regions(ratio: float, advantage: float, dual_clip: float | None, moves: bool) -> None:
    logprobs = torch.tensor([math.log(ratio) - 2], dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-2.0], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        mask=torch.tensor([True]),
        denominator=1.0,
        dual_clip=dual_clip,
    )
    gradient = torch.autograd.grad(loss, logprobs)[0].item()
    assert gradient == pytest.approx(-ratio * advantage if moves else 0.0)
    assert metrics["clip_fraction"].value == float(not moves and advantage != 0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_first_update_is_reinforce_by_enumeration(objective: str) -> None:
    # Each of three ids once, weighted by its probability: the exact gradient of the expected advantage.
    logits = torch.tensor([0.2, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
    logprobs = logits.log_softmax(0)
    expected = torch.autograd.grad(-(logprobs.exp() * advantages).sum(), logits, retain_graph=True)[0]
    loss, metrics = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        advantages=advantages,
        mask=torch.ones(3, dtype=torch.bool),
        denominator=1.0,
        objective=objective,
        sequence_ids=torch.arange(3),
        weights=logprobs.detach().exp(),
    )
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)
    on_policy = {"clip_fraction": 0.0, "ratio_mean": 1.0, "ratio_deviation": 0.0, "approx_kl": 0.0}
    assert metric_values(metrics) == on_policy


# --- extremes and refusals ----------------------------------------------------------------------


@settings(max_examples=50)
@given(log_ratio=st.floats(80.0, 1e30), advantage=st.floats(0.0, 10.0))
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_a_bound_ratio_cannot_overflow(dual_clip: float | None, log_ratio: float, advantage: float) -> None:
    signed, bound = (advantage, 1.28) if dual_clip is None else (-advantage - 0.1, dual_clip)
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    loss, _ = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=torch.zeros(1),
        advantages=torch.tensor([signed]),
        mask=torch.tensor([True]),
        denominator=1.0,
        dual_clip=dual_clip,
    )
    loss.backward()
    assert loss.item() == pytest.approx(-bound * signed, rel=1e-5)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0.0


def test_refuses_unknown_objective() -> None:
    with pytest.raises(ValueError, match="unknown objective 'grpo'; known: ppo_clip, gspo, cispo"):
        policy_loss(objective="grpo")(batch(3), 1.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_refuses_impossible_clips(objective: str) -> None:
    for low, high in [(0.0, 0.2), (1.1, 0.2), (-0.1, 0.2), (0.2, 0.0), (math.nan, 0.2), (0.2, math.nan)]:
        with pytest.raises(ValueError, match="clips need 0 < low <= 1 and high > 0"):
            policy_loss(objective=objective, clip_low=low, clip_high=high)(batch(3), 1.0)


@pytest.mark.parametrize("dual_clip", [1.28, 1.0, -3.0, 0.0, math.nan])
def test_refuses_a_dual_clip_inside_the_clip(dual_clip: float) -> None:
    with pytest.raises(ValueError, match=r"dual_clip = .* must be above 1 \+ clip_high = 1\.28"):
        policy_loss(dual_clip=dual_clip)(batch(3), 1.0)


@pytest.mark.parametrize("objective", ["gspo", "cispo", "reinforce"])
def test_only_ppo_clip_has_a_dual_clip(objective: str) -> None:
    with pytest.raises(ValueError, match=rf"dual_clip = 3\.0 is a bound of ppo_clip; {objective}"):
        policy_loss(objective=objective, dual_clip=3.0)(batch(3), 1.0)


def test_reinforce_has_no_bound_below() -> None:
    with pytest.raises(ValueError, match=r"clip_low = 0\.2 is a bound of cispo; reinforce has none below"):
        policy_loss(objective="reinforce", clip_low=0.2)(batch(3), 1.0)


def test_is_a_loss_for_the_trainer() -> None:
    loss: Loss = policy_gradient_loss
    tokens = batch(4)
    del tokens["reference_logprobs"]
    value, _ = loss(**tokens, denominator=1.0)
    assert value.item() == pytest.approx(loop(tokens, 1.0))
