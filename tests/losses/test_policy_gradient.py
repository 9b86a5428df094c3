"""The clipped policy gradient as mathematics: values, gradients, invariances, clip regions, bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnpoint.losses import policy_gradient_loss, sequence_weights
from turnpoint.metrics import Metrics, merge_metrics, metric_values
from turnpoint.protocols import Loss


def batch(n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Returns n tokens with ratios on both sides of both clips, a third of them masked."""
    draws = torch.Generator().manual_seed(seed)
    old = -torch.rand(n, generator=draws, dtype=dtype) * 3
    return {
        "logprobs": (old + torch.randn(n, generator=draws, dtype=dtype) * 0.3).requires_grad_(),
        "old_logprobs": old,
        "advantages": torch.randn(n, generator=draws, dtype=dtype),
        "mask": torch.rand(n, generator=draws) > 0.33,
        "weights": torch.rand(n, generator=draws, dtype=dtype) + 0.5,
    }


def value_and_gradient(tokens: dict[str, Any], denominator: float = 7.0) -> tuple[Tensor, Tensor]:
    loss, _ = policy_gradient_loss(**tokens, denominator=denominator)
    leaf: Tensor = tokens["logprobs"]
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def select(tokens: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """Returns the tokens at `index`, with a fresh leaf for the gradient."""
    return {name: t.detach()[index].clone().requires_grad_(name == "logprobs") for name, t in tokens.items()}


def loop(tokens: dict[str, Any], denominator: float, low: float = 0.2, high: float = 0.28) -> float:
    """The equation of the docstring, one token at a time."""
    total = 0.0
    columns = [
        tokens[name].tolist() for name in ("logprobs", "old_logprobs", "advantages", "mask", "weights")
    ]
    for logprob, old, advantage, kept, weight in zip(*columns, strict=True):
        if kept:
            ratio = math.exp(logprob - old)
            clipped = min(max(ratio, 1 - low), 1 + high)
            total -= weight * min(ratio * advantage, clipped * advantage)
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
    loss, _ = policy_gradient_loss(**tokens, denominator=denominator)
    assert loss.item() == pytest.approx(loop(tokens, denominator), rel=1e-9, abs=1e-12)


def test_clips_are_arguments() -> None:
    tokens = batch(40)
    loss, _ = policy_gradient_loss(**tokens, denominator=5.0, clip_low=0.05, clip_high=0.5)
    assert loss.item() == pytest.approx(loop(tokens, 5.0, 0.05, 0.5))
    only_low, _ = policy_gradient_loss(**tokens, denominator=5.0, clip_low=0.05)
    assert only_low.item() == pytest.approx(loop(tokens, 5.0, 0.05, 0.28))
    never, _ = policy_gradient_loss(**tokens, denominator=5.0, clip_low=1.0, clip_high=math.inf)
    assert never.item() == pytest.approx(loop(tokens, 5.0, 1.0, math.inf))


def test_shape_does_not_matter() -> None:
    tokens = batch(12)
    rows = {name: t.detach().reshape(3, 4) for name, t in tokens.items()}
    assert policy_gradient_loss(**rows, denominator=3.0)[0].item() == pytest.approx(loop(tokens, 3.0))


# --- gradients ----------------------------------------------------------------------------------


def test_numerical_gradient() -> None:
    tokens = batch(30)
    logprobs = tokens.pop("logprobs")

    def loss_of(values: Tensor) -> Tensor:
        return policy_gradient_loss(logprobs=values, **tokens, denominator=7.0)[0]

    assert torch.autograd.gradcheck(loss_of, logprobs)


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.27, 1.0, True),
        (1.29, 1.0, False),  # already much likelier and good: leave it
        (1.29, -1.0, True),  # much likelier and bad: always pulled back
        (0.81, -1.0, True),
        (0.79, -1.0, False),  # already much rarer and bad: leave it
        (0.79, 1.0, True),  # much rarer and good: always pulled back
        (1.00, 1.0, True),
        (1.00, -1.0, True),
        (9.00, 0.0, False),
    ],
)
def test_clip_regions(ratio: float, advantage: float, moves: bool) -> None:
    logprobs = torch.tensor([math.log(ratio) - 2], dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-2.0], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        mask=torch.tensor([True]),
        denominator=1.0,
    )
    gradient = torch.autograd.grad(loss, logprobs)[0].item()
    assert gradient == pytest.approx(-ratio * advantage if moves else 0.0)
    assert metrics["clip_fraction"].value == float(not moves and advantage != 0)


def test_only_logprobs_get_a_gradient() -> None:
    tokens = batch(9)
    constants = {n: t.detach().clone().requires_grad_() for n, t in tokens.items() if t.is_floating_point()}
    loss, _ = policy_gradient_loss(**constants, mask=tokens["mask"], denominator=1.0)
    loss.backward()
    assert constants["logprobs"].grad is not None
    assert all(constants[n].grad is None for n in ("old_logprobs", "advantages", "weights"))


def test_first_update_is_reinforce_by_enumeration() -> None:
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
        weights=logprobs.detach().exp(),
    )
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)
    on_policy = {"clip_fraction": 0.0, "ratio_mean": 1.0, "ratio_deviation": 0.0, "approx_kl": 0.0}
    assert metric_values(metrics) == on_policy


# --- masks --------------------------------------------------------------------------------------


def test_masking_is_deleting() -> None:
    tokens = batch(30)
    kept = tokens["mask"].nonzero().squeeze(1)
    value, gradient = value_and_gradient(tokens)
    value_without, gradient_without = value_and_gradient(select(tokens, kept))
    torch.testing.assert_close(value, value_without)
    torch.testing.assert_close(gradient[kept], gradient_without)
    assert torch.equal(gradient[~tokens["mask"]], torch.zeros(30 - len(kept), dtype=torch.float64))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("names", [["logprobs"], ["old_logprobs"], ["advantages"], ["weights"], None])
def test_masked_positions_cannot_touch_anything(poison: float, names: list[str] | None) -> None:
    tokens = batch(30)
    clean = select(tokens, torch.arange(30))
    for name in names or ["logprobs", "old_logprobs", "advantages", "weights"]:
        with torch.no_grad():
            tokens[name][~tokens["mask"]] = poison
    for ours, theirs in zip(value_and_gradient(tokens), value_and_gradient(clean), strict=True):
        assert torch.equal(ours, theirs)
    metrics = [policy_gradient_loss(**t, denominator=7.0)[1] for t in (tokens, clean)]
    assert metrics[0] == metrics[1]


def test_everything_masked_is_zero_and_metrics_are_absent() -> None:
    tokens = batch(5)
    tokens["mask"] = torch.zeros(5, dtype=torch.bool)
    for denominator in (0.0, 3.0):
        loss, metrics = policy_gradient_loss(**tokens, denominator=denominator)
        loss.backward()
        assert loss.item() == 0.0
        assert metric_values(metrics) == {}
    assert torch.equal(tokens["logprobs"].grad, torch.zeros(5, dtype=torch.float64))


def test_no_tokens_at_all() -> None:
    tokens = batch(0)
    loss, metrics = policy_gradient_loss(**tokens, denominator=2.0)
    assert (loss.item(), metric_values(metrics)) == (0.0, {})


# --- invariances --------------------------------------------------------------------------------


@given(order=st.permutations(range(12)))
def test_order_does_not_matter(order: list[int]) -> None:
    tokens, index = batch(12), torch.tensor(order)
    value, gradient = value_and_gradient(tokens)
    permuted_value, permuted_gradient = value_and_gradient(select(tokens, index))
    torch.testing.assert_close(value, permuted_value)
    torch.testing.assert_close(gradient[index], permuted_gradient)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("micro_batches", [[8], [4, 4], [1] * 8, [3, 5], [8, 0]])
def test_micro_batches_add_up_to_the_step(aggregation: str, micro_batches: list[int]) -> None:
    # eight sequences of very different length, one of them without trained tokens
    lengths = [1, 40, 3, 0, 17, 2, 64, 9]
    tokens = batch(sum(lengths), seed=3)
    tokens["mask"] = torch.ones(sum(lengths), dtype=torch.bool)
    factors, denominator = sequence_weights(lengths=lengths, aggregation=aggregation, max_tokens=64)
    tokens["weights"] = torch.tensor(factors, dtype=torch.float64).repeat_interleave(torch.tensor(lengths))
    whole_value, whole_gradient = value_and_gradient(tokens, denominator)
    whole_metrics = policy_gradient_loss(**tokens, denominator=denominator)[1]

    value, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(whole_gradient)
    metrics: list[Metrics] = []
    sequence = token = 0
    for size in micro_batches:
        count = sum(lengths[sequence : sequence + size])
        index = torch.arange(token, token + count)
        sequence, token = sequence + size, token + count
        part = select(tokens, index)
        part_value, part_gradient = value_and_gradient(part, denominator)
        value, gradient = value + part_value, gradient.index_add(0, index, part_gradient)
        metrics.append(policy_gradient_loss(**part, denominator=denominator)[1])
    torch.testing.assert_close(value, whole_value)
    torch.testing.assert_close(gradient, whole_gradient)
    assert metric_values(merge_metrics(metrics)) == pytest.approx(metric_values(whole_metrics))


def test_loss_is_linear_in_weights_and_denominator() -> None:
    tokens = batch(20)
    value, gradient = value_and_gradient(tokens)
    doubled = {**tokens, "weights": 2 * tokens["weights"]}
    torch.testing.assert_close(value_and_gradient(doubled, 14.0), (value, gradient))
    plain = {**tokens, "weights": torch.ones_like(tokens["weights"])}
    torch.testing.assert_close(value_and_gradient({**tokens, "weights": None}), value_and_gradient(plain))


# --- extremes and refusals ----------------------------------------------------------------------


@settings(max_examples=50)
@given(log_ratio=st.floats(80.0, 1e30), advantage=st.floats(0.0, 10.0))
def test_a_bound_ratio_cannot_overflow(log_ratio: float, advantage: float) -> None:
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    loss, _ = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=torch.zeros(1),
        advantages=torch.tensor([advantage]),
        mask=torch.tensor([True]),
        denominator=1.0,
    )
    loss.backward()
    assert loss.item() == pytest.approx(-1.28 * advantage, rel=1e-5)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0.0


def test_an_unmasked_nan_is_not_hidden() -> None:
    tokens = batch(6)
    tokens["mask"][:] = True
    tokens["old_logprobs"][2] = math.nan
    assert math.isnan(value_and_gradient(tokens)[0].item())


@pytest.mark.parametrize("denominator", [-1.0, 0.0, math.nan, math.inf])
def test_refuses_a_denominator_that_counts_nothing(denominator: float) -> None:
    with pytest.raises(ValueError, match=r"denominator .* trained tokens"):
        policy_gradient_loss(**batch(9), denominator=denominator)


def test_refuses_unknown_objective_and_impossible_clips() -> None:
    tokens = batch(3)
    with pytest.raises(ValueError, match="unknown objective 'gspo'; known: ppo_clip"):
        policy_gradient_loss(**tokens, denominator=1.0, objective="gspo")
    for low, high in [(0.0, 0.2), (1.1, 0.2), (-0.1, 0.2), (0.2, 0.0), (math.nan, 0.2), (0.2, math.nan)]:
        with pytest.raises(ValueError, match="clips need 0 < low <= 1 and high > 0"):
            policy_gradient_loss(**tokens, denominator=1.0, clip_low=low, clip_high=high)


def test_is_a_loss_for_the_trainer() -> None:
    loss: Loss = policy_gradient_loss
    tokens = batch(4)
    value, _ = loss(**tokens, denominator=1.0, sequence_ids=torch.tensor([0, 0, 1, 1]))
    assert value.item() == pytest.approx(loop(tokens, 1.0))
