"""The pull towards a reference: its expected gradient by enumeration, its value, extremes, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.losses.tokens import LOSSES, batch, called, policy_loss, value_and_gradient
from turnpoint.losses import kl_loss, sequence_weights
from turnpoint.metrics import Mean

DIVERGENCES = ("reverse", "forward")
every_divergence = pytest.mark.parametrize("divergence", DIVERGENCES)

# Laws over a vocabulary of five: the policy, the one that sampled, and the reference.
LOGITS = torch.tensor([0.4, -1.2, 0.9, 0.0, -0.3], dtype=torch.float64)
OLD = torch.tensor([0.1, -0.2, 1.5, -1.0, 0.3], dtype=torch.float64).log_softmax(0)
REFERENCE = torch.tensor([-0.5, 0.8, 0.2, 0.6, -2.0], dtype=torch.float64).log_softmax(0)
ALL = torch.ones(5, dtype=torch.bool)


def exact(logprobs: Tensor, divergence: str) -> Tensor:
    if divergence == "reverse":
        return (logprobs.exp() * (logprobs - REFERENCE)).sum()
    return (REFERENCE.exp() * (REFERENCE - logprobs)).sum()


# --- expectation, nothing sampled ---------------------------------------------------------------


@every_divergence
@pytest.mark.parametrize("update", ["first", "later"])
def test_expected_gradient_is_that_of_the_divergence(divergence: str, update: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    old = logprobs.detach() if update == "first" else OLD
    truth = torch.autograd.grad(exact(logprobs, divergence), logits, retain_graph=True)[0]
    loss, _ = kl_loss(
        logprobs=logprobs,
        reference_logprobs=REFERENCE,
        old_logprobs=old,
        mask=ALL,
        denominator=1.0,
        divergence=divergence,
        weights=old.exp(),  # each id once, with the probability of drawing it
    )
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], truth)
    assert truth.abs().max() > 0.05


@every_divergence
@pytest.mark.parametrize("old", [LOGITS.log_softmax(0), OLD])
def test_the_metric_is_an_estimate_of_the_reverse_divergence(divergence: str, old: Tensor) -> None:
    logprobs = LOGITS.log_softmax(0)
    expected = 0.0
    for token in range(5):
        one = slice(token, token + 1)
        _, metrics = kl_loss(
            logprobs=logprobs[one],
            reference_logprobs=REFERENCE[one],
            old_logprobs=old[one],
            mask=ALL[one],
            denominator=1.0,
            divergence=divergence,
        )
        assert metrics["kl"].value is not None
        expected += old[token].exp().item() * metrics["kl"].value
    assert expected == pytest.approx(exact(logprobs, "reverse").item())
    assert expected != pytest.approx(exact(logprobs, "forward").item(), rel=0.1)


def test_k1_as_a_loss_would_pull_nowhere() -> None:
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    k1 = (logprobs.detach().exp() * (logprobs - REFERENCE)).sum()
    torch.testing.assert_close(torch.autograd.grad(k1, logits)[0], torch.zeros_like(LOGITS))


# --- one token ----------------------------------------------------------------------------------


@every_divergence
def test_equals_the_loop(divergence: str) -> None:
    tokens = batch(40)
    total = kl = 0.0
    columns = ("logprobs", "reference_logprobs", "old_logprobs", "weights", "mask")
    for logprob, reference, old, weight, kept in zip(*(tokens[n].tolist() for n in columns), strict=True):
        if kept:
            gap, ratio = logprob - reference, math.exp(logprob - old)
            k3 = math.exp(-gap) - 1 + gap
            total += weight * ratio * (gap**2 / 2 if divergence == "reverse" else k3)
            kl += ratio * k3
    loss, metrics = called(kl_loss, tokens, 7.0, divergence=divergence)
    assert loss.item() == pytest.approx(total / 7.0)
    measured = metrics["kl"]
    assert isinstance(measured, Mean)
    assert (measured.numerator, measured.denominator) == (pytest.approx(kl), int(tokens["mask"].sum()))


@every_divergence
def test_numerical_gradient_at_a_fixed_ratio(divergence: str) -> None:
    tokens = batch(30)
    log_ratio = (tokens["logprobs"] - tokens["old_logprobs"]).detach()

    def loss_of(values: Tensor) -> Tensor:
        moved = {**tokens, "logprobs": values, "old_logprobs": values.detach() - log_ratio}
        return called(kl_loss, moved, 7.0, divergence=divergence)[0]

    assert torch.autograd.gradcheck(loss_of, tokens["logprobs"])


@every_divergence
def test_at_the_reference_there_is_no_pull(divergence: str) -> None:
    tokens = batch(10)
    tokens["reference_logprobs"] = tokens["logprobs"].detach().clone()
    value, gradient = value_and_gradient(LOSSES[f"{divergence} KL"], tokens)
    assert value.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


@every_divergence
@pytest.mark.parametrize("gap", [-1e4, -100.0, -31.0, -29.0, -1.0, 1.0, 29.0, 100.0, 1e4])
@pytest.mark.parametrize("log_ratio", [0.0, 500.0, -500.0])
def test_extremes_are_finite_and_pull_the_right_way(divergence: str, gap: float, log_ratio: float) -> None:
    logprobs = torch.tensor([-3.0], requires_grad=True)
    loss, metrics = kl_loss(
        logprobs=logprobs,
        reference_logprobs=torch.tensor([-3.0 - gap]),
        old_logprobs=torch.tensor([-3.0 - log_ratio]),
        mask=torch.tensor([True]),
        denominator=1.0,
        divergence=divergence,
    )
    gradient = torch.autograd.grad(loss, logprobs)[0].item()
    kl = metrics["kl"].value
    assert kl is not None
    assert math.isfinite(loss.item())
    assert math.isfinite(kl)
    assert math.isfinite(gradient)
    assert gradient * gap >= 0  # descent lowers p where it is above the reference
    assert (gradient == 0) == (log_ratio == -500.0)


def test_the_bound_is_far_out() -> None:
    tokens = batch(1)
    tokens |= {"mask": torch.tensor([True]), "weights": None, "old_logprobs": tokens["logprobs"].detach()}
    tokens["reference_logprobs"] = tokens["logprobs"].detach() + 29.0
    value, gradient = value_and_gradient(LOSSES["forward KL"], tokens, 1.0)
    assert value.item() == pytest.approx(math.exp(29.0), rel=1e-9)
    assert gradient.item() == pytest.approx(1 - math.exp(29.0), rel=1e-9)


# --- beside the policy term ---------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@every_divergence
def test_is_averaged_as_the_policy_term_is(divergence: str, aggregation: str) -> None:
    lengths, coef = [2, 20, 5], 0.3
    n = sum(lengths)
    tokens = batch(n)
    tokens["mask"] = torch.ones(n, dtype=torch.bool)
    factors, denominator = sequence_weights(lengths=lengths, aggregation=aggregation, max_tokens=32)
    tokens["weights"] = torch.tensor(factors, dtype=torch.float64).repeat_interleave(torch.tensor(lengths))
    policy, _ = policy_loss()(tokens, denominator)
    pull, _ = called(kl_loss, tokens, denominator, divergence=divergence)

    by_hand, start = 0.0, 0
    for length in lengths:
        terms: list[float] = []
        for t in range(start, start + length):
            p, old, reference, advantage = (
                float(tokens[name].detach()[t])
                for name in ("logprobs", "old_logprobs", "reference_logprobs", "advantages")
            )
            gap, ratio = p - reference, math.exp(p - old)
            k = gap**2 / 2 if divergence == "reverse" else math.exp(-gap) - 1 + gap
            surrogate = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
            terms.append(coef * ratio * k - surrogate)
        start += length
        by_hand += {
            "token": sum(terms) / n,
            "sequence": sum(terms) / length / 3,
            "constant": sum(terms) / (3 * 32),
        }[aggregation]
    assert (policy + coef * pull).item() == pytest.approx(by_hand)


@every_divergence
def test_groups_without_contrast_are_still_pulled(divergence: str) -> None:
    tokens = batch(12)
    tokens["advantages"] = torch.zeros_like(tokens["advantages"])
    _, pull = value_and_gradient(LOSSES[f"{divergence} KL"], tokens)
    _, policy = value_and_gradient(policy_loss(), tokens)
    assert torch.equal(policy, torch.zeros_like(policy))
    assert (pull[tokens["mask"]] != 0).all()


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("k1", "divergence 'k1': as a loss its expected gradient is 0; use 'reverse' or 'forward'"),
        ("k2", "divergence 'k2' is an estimator; the one it follows is 'reverse'"),
        ("k3", "divergence 'k3' is an estimator; the one it follows is 'forward'"),
        ("low_var_kl", "divergence 'low_var_kl' is an estimator; the one it follows is 'forward'"),
        ("js", "unknown divergence 'js'; known: reverse, forward"),
    ],
)
def test_refuses_what_is_no_divergence(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        called(kl_loss, batch(3), 1.0, divergence=name)
