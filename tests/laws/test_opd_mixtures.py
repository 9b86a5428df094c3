"""Laws: a mixture of teachers has the gradient of the divergence to the mean it is named after."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Literal, TypeAlias

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnpoint.losses import policy_gradient_loss
from turnpoint.teachers import discounted_signal, sampled_token_signal
from turnpoint.teachers.mixture import mixed

exactly = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-10)
Mean: TypeAlias = Literal["arithmetic", "geometric"]
MEANS: tuple[Mean, ...] = ("arithmetic", "geometric")
WEIGHTS = (0.5, 0.3, 0.2)


def tables(*shape: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Returns a student's logits, and the log-probabilities of three teachers."""
    draws = torch.Generator().manual_seed(seed)
    logits = [2 * torch.randn(*shape, generator=draws, dtype=torch.float64) for _ in range(4)]
    return logits[0].requires_grad_(), [it.log_softmax(-1) for it in logits[1:]]


def mean_of(parts: list[Tensor], mean: Mean) -> Tensor:
    """Returns [n] of parts' [n], as a run computes it."""
    return torch.from_numpy(mixed([part.numpy() for part in parts], weights=WEIGHTS, mean=mean))


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum()


def policy_gradient(logits: Tensor, log_p: Tensor, signal: Tensor, drawn: Tensor) -> Tensor:
    """Returns the expected gradient of the policy loss, tokens weighted with the chance of drawing them."""
    loss, _ = policy_gradient_loss(
        logprobs=log_p,
        old_logprobs=log_p.detach(),
        advantages=signal,
        mask=torch.ones_like(log_p, dtype=torch.bool),
        denominator=1.0,
        weights=drawn.detach(),
        objective="reinforce",
    )
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


@pytest.mark.parametrize("mean", MEANS)
@given(size=st.integers(2, 9), seed=st.integers(0, 500))
def test_a_mixtures_signal_follows_the_divergence_to_the_normalised_mean(
    mean: Mean, size: int, seed: int
) -> None:
    logits, parts = tables(size, seed=seed)
    log_p, target = logits.log_softmax(-1), mean_of(parts, mean)
    signal = sampled_token_signal(student_logprobs=log_p, teacher_logprobs=target)
    found = policy_gradient(logits, log_p, signal, log_p.exp())
    exactly(found, torch.autograd.grad(kl(log_p, target.log_softmax(-1)), logits)[0])


@given(seed=st.integers(0, 500))
def test_the_means_are_different_targets_and_only_the_geometric_one_is_no_law(seed: int) -> None:
    _, parts = tables(5, seed=seed)
    arithmetic, geometric = (mean_of(parts, mean) for mean in MEANS)
    exactly(arithmetic.exp().sum(), torch.ones((), dtype=torch.float64))
    exactly(arithmetic.exp(), sum(w * part.exp() for w, part in zip(WEIGHTS, parts, strict=True)))
    assert geometric.exp().sum() < 1
    assert bool((geometric <= arithmetic + 1e-12).all())


@given(seed=st.integers(0, 200))
def test_at_discount_one_the_geometric_mean_is_that_of_whole_rollouts(seed: int) -> None:
    """Three ids, two steps: a table of one law behind nothing and one behind each id."""
    size = 3
    table, parts = tables(1 + size, size, seed=seed)
    pairs = list(itertools.product(range(size), repeat=2))
    rows = torch.tensor([row for first, _ in pairs for row in (0, 1 + first)])
    ids = torch.tensor([token for pair in pairs for token in pair])

    def of_pairs(laws: Tensor) -> Tensor:  # [9] of whole rollouts
        return laws[rows, ids].reshape(-1, 2).sum(-1)

    student = table.log_softmax(-1)
    whole = of_pairs(student)
    log_p, target = student[rows, ids], mean_of([part[rows, ids] for part in parts], "geometric")
    signal = discounted_signal(
        sampled_token_signal(student_logprobs=log_p, teacher_logprobs=target),
        discount=1.0,
        sequence_ids=torch.arange(len(pairs)).repeat_interleave(2),
    )
    found = policy_gradient(table, log_p, signal, whole.exp().repeat_interleave(2))
    weighted = [w * kl(whole, of_pairs(part)) for w, part in zip(WEIGHTS, parts, strict=True)]
    exactly(found, torch.autograd.grad(torch.stack(weighted).sum(), table, retain_graph=True)[0])
    mean = mean_of([of_pairs(part) for part in parts], "geometric").log_softmax(-1)
    exactly(found, torch.autograd.grad(kl(whole, mean), table, retain_graph=True)[0])
    step_by_step = of_pairs(
        torch.stack([mean_of(list(it), "geometric") for it in zip(*parts, strict=True)]).log_softmax(-1)
    )
    other = torch.autograd.grad(kl(whole, step_by_step), table)[0]
    assert (found - other).abs().max() > 1e-6
