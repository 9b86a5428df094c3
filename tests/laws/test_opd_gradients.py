"""Laws: what distils has the gradient of the divergence it is named after, by enumeration in float64.

Every id of a small vocabulary is drawn once and weighted with its probability, so nothing is left to chance.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.toys import FORWARD_GRADIENT, REVERSE_GRADIENT, STUDENT, TEACHER, rows
from turnpoint.credit import combine_advantages
from turnpoint.losses import (
    distillation_loss,
    k2,
    policy_gradient_loss,
    reverse_kl,
    reverse_kl_topk_hybrid,
    reverse_kl_topk_hybrid_gathered,
    truncated_weights,
)
from turnpoint.teachers import discounted_signal, sampled_token_signal

OBJECTIVES = ("ppo_clip", "cispo", "reinforce")
sizes, seeds = st.integers(2, 9), st.integers(0, 500)
exactly = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-10)


def laws(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns a student's logits and a teacher's log-probabilities."""
    tokens = rows(1, size, seed=seed)
    student = tokens["student_logits"].detach()[0].clone().requires_grad_()
    return student, tokens["teacher_logits"][0].log_softmax(0)


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def exact_gradient(logits: Tensor, teacher: Tensor) -> Tensor:
    log_p = logits.log_softmax(0)
    return gradient((log_p.exp() * (log_p - teacher)).sum(), logits)


def surrogate(
    logprobs: Tensor, advantages: Tensor, drawn_with: Tensor, *, old: Tensor | None = None, **options: Any
) -> Tensor:
    """Returns the expected policy loss, each token weighted with the probability of drawing it."""
    return policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=logprobs.detach() if old is None else old,
        advantages=advantages,
        mask=torch.ones_like(logprobs, dtype=torch.bool),
        denominator=1.0,
        weights=drawn_with.detach(),
        **options,
    )[0]


def every_id(logits: Tensor, teacher: Tensor) -> dict[str, Tensor]:
    """Returns one row per id of the vocabulary, the id being the sample."""
    size = len(teacher)
    return {
        "student_logits": logits.expand(size, size),
        "teacher_logits": teacher.expand(size, size),
        "sampled_ids": torch.arange(size),
    }


# --- the signal as an advantage -----------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(size=sizes, seed=seeds)
def test_policy_gradient_of_the_signal_is_that_of_the_reverse_kl(
    objective: str, size: int, seed: int
) -> None:
    logits, teacher = laws(size, seed)
    log_p = logits.log_softmax(0)
    signal = sampled_token_signal(student_logprobs=log_p, teacher_logprobs=teacher)
    loss = surrogate(log_p, combine_advantages(None, signal, coef=1.0), log_p.exp(), objective=objective)
    exactly(gradient(loss, logits), exact_gradient(logits, teacher))
    full = reverse_kl(student_logits=logits, teacher_logits=teacher)
    exactly(gradient(full, logits), exact_gradient(logits, teacher))


@given(size=sizes, seed=seeds)
def test_stale_tokens_have_the_same_gradient_by_their_weights(size: int, seed: int) -> None:
    logits, teacher = laws(size, seed)
    log_p, behaviour = logits.log_softmax(0), laws(size, seed + 1)[0].detach().log_softmax(0)
    mu = behaviour.exp()
    signal = sampled_token_signal(student_logprobs=log_p, teacher_logprobs=teacher)
    truth = exact_gradient(logits, teacher)
    reinforce = partial(surrogate, old=behaviour, objective="reinforce", clip_high=math.inf)
    exactly(gradient(reinforce(log_p, signal, mu), logits), truth)
    weights = (log_p.detach() - behaviour).exp()
    one = k2(student_logprobs=log_p, teacher_logprobs=teacher, weights=weights)
    exactly(gradient((mu * one).sum(), logits), truth)
    for k in range(1, size + 1):
        few = reverse_kl_topk_hybrid(**every_id(logits, teacher), k=k, weights=weights)
        exactly(gradient((mu * few).sum(), logits), truth)


def test_the_signal_against_the_sampling_law_is_another_objective() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log().requires_grad_()
    log_p, teacher, behaviour = logits.log_softmax(0), TEACHER.log(), STUDENT.log()
    stale = sampled_token_signal(student_logprobs=behaviour, teacher_logprobs=teacher)
    loss = surrogate(log_p, stale, STUDENT, old=behaviour, objective="reinforce", clip_high=math.inf)
    truth = exact_gradient(logits, teacher)
    assert (gradient(loss, logits) - truth).norm() > 0.5 * truth.norm()


def test_a_clip_silences_the_token_that_is_furthest_off() -> None:
    """The policy moved towards the teacher; PPO stops there, truncated weights go on."""
    old, teacher = torch.tensor([math.log(0.02)]), torch.tensor([math.log(0.49)])
    log_p = torch.tensor([math.log(0.04)], requires_grad=True)
    signal = sampled_token_signal(student_logprobs=log_p, teacher_logprobs=teacher)
    slopes = {
        objective: gradient(surrogate(log_p, signal, torch.ones(1), old=old, objective=objective), log_p)
        for objective in OBJECTIVES
    }
    d = math.log(0.49 / 0.04)
    assert slopes["ppo_clip"].item() == 0.0
    assert slopes["cispo"].item() == pytest.approx(-1.28 * d)
    assert slopes["reinforce"].item() == pytest.approx(-2.0 * d)


def test_one_step_raises_a_token_exactly_where_the_teacher_likes_it_more() -> None:
    for drawn in range(3):
        logits = STUDENT.log().requires_grad_()
        log_p = logits.log_softmax(0)[[drawn]]
        signal = sampled_token_signal(student_logprobs=log_p, teacher_logprobs=TEACHER.log()[[drawn]])
        step = -0.01 * gradient(surrogate(log_p, signal, torch.ones(1, dtype=torch.float64)), logits)
        after = (logits + step).log_softmax(0)[drawn]
        assert (after > log_p[0]) == (TEACHER[drawn] > STUDENT[drawn])


def test_published_combinations() -> None:
    """Numbers of Miles' own tests: A + coef * d, the signal taken as -(student - teacher)."""
    signal = sampled_token_signal(student_logprobs=torch.tensor([0.0, 1.0]), teacher_logprobs=torch.zeros(2))
    assert combine_advantages(torch.full((2,), 2.0), signal, coef=0.5).tolist() == [2.0, 1.5]
    given_kl = torch.tensor([0.4, -0.2])
    assert combine_advantages(None, -given_kl, coef=0.25).tolist() == pytest.approx([-0.1, 0.05])
    toy = sampled_token_signal(student_logprobs=STUDENT.log(), teacher_logprobs=TEACHER.log())
    assert toy.tolist() == pytest.approx([math.log(0.49 / 0.78), math.log(24.5), math.log(0.1)])
    twice = torch.tensor([0.4, 0.2]).log()
    both = sampled_token_signal(student_logprobs=twice.flip(0), teacher_logprobs=twice)
    assert combine_advantages(torch.full((2,), 0.5), both, coef=0.2).tolist() == pytest.approx(
        [0.638629, 0.361371], abs=1e-6
    )
    assert combine_advantages(None, both, coef=0.2).tolist() == pytest.approx([0.138629, -0.138629], abs=1e-6)


def test_the_published_cap() -> None:
    weights, _ = truncated_weights(
        old_logprobs=torch.tensor([4.0, 1.5]).log(),
        behaviour_logprobs=torch.zeros(2),
        mask=torch.tensor([True, True]),
        cap=2.0,
    )
    assert (weights * torch.tensor([1.0, 2.0])).tolist() == pytest.approx([2.0, 3.0])


# --- whole sequences ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_discount_one_is_the_kl_of_sequences_and_zero_that_of_tokens(seed: int) -> None:
    """A table of laws, one per prefix: three ids, three steps, 27 sequences."""
    size, length = 3, 3
    prefixes = [it for at in range(length) for it in itertools.product(range(size), repeat=at)]
    tokens = rows(len(prefixes), size, seed=seed, scale=1.0)
    table = tokens["student_logits"]
    student = dict(zip(prefixes, table.log_softmax(-1), strict=True))
    teacher = dict(zip(prefixes, tokens["teacher_logits"].log_softmax(-1), strict=True))
    steps: list[tuple[Tensor, Tensor]] = []
    ids: list[int] = []
    sums: list[tuple[Tensor, Tensor]] = []
    for index, chosen in enumerate(itertools.product(range(size), repeat=length)):
        row = [(student[chosen[:at]][chosen[at]], teacher[chosen[:at]][chosen[at]]) for at in range(length)]
        total = sum((p for p, _ in row), torch.zeros((), dtype=torch.float64))
        sums.append((total, total - sum(q for _, q in row)))
        steps += row
        ids += [index] * length
    log_p, log_q = (torch.stack(column) for column in zip(*steps, strict=True))
    drawn = torch.stack([total.exp().detach() for total, _ in sums]).repeat_interleave(length)
    of_sequences = torch.stack([total.exp() * gap for total, gap in sums]).sum()
    reach = {prefix: torch.ones((), dtype=torch.float64) for prefix in prefixes}
    for prefix in prefixes[1:]:
        reach[prefix] = reach[prefix[:-1]] * student[prefix[:-1]][prefix[-1]].exp().detach()
    per_prefix = reverse_kl(student_logits=table, teacher_logits=tokens["teacher_logits"])
    of_tokens = (torch.stack([reach[prefix] for prefix in prefixes]) * per_prefix).sum()
    signal = sampled_token_signal(student_logprobs=log_p, teacher_logprobs=log_q)
    found: list[Tensor] = []
    for discount, truth in [(1.0, of_sequences), (0.0, of_tokens)]:
        returns = discounted_signal(signal, discount=discount, sequence_ids=torch.tensor(ids))
        found.append(gradient(surrogate(log_p, returns, drawn, objective="reinforce"), table))
        exactly(found[-1], gradient(truth, table))
    assert (found[0] - found[1]).abs().max() > 1e-2
    assert found[0][len(prefixes) - 9 :].allclose(found[1][len(prefixes) - 9 :])  # nothing comes later


# --- few candidates -----------------------------------------------------------------------------


@given(size=sizes, seed=seeds)
def test_the_hybrid_is_unbiased_for_every_k(size: int, seed: int) -> None:
    logits, teacher = laws(size, seed)
    p = logits.softmax(0).detach()
    truth = reverse_kl(student_logits=logits, teacher_logits=teacher)
    for k in range(1, size + 1):
        values = reverse_kl_topk_hybrid(**every_id(logits, teacher), k=k)
        exactly((p * values).sum(), truth)
        exactly(gradient((p * values).sum(), logits), exact_gradient(logits, teacher))
        if k == size:
            exactly(values, truth.expand(size))


@given(size=st.integers(2, 6), seed=seeds)
def test_the_gathered_hybrid_is_unbiased_for_every_set_of_candidates(size: int, seed: int) -> None:
    logits, teacher = laws(size, seed)
    log_p = logits.log_softmax(0)
    p = log_p.exp().detach()
    for count in range(1, size + 1):
        for chosen in itertools.combinations(range(size), count):
            ids = torch.tensor(chosen)
            values = reverse_kl_topk_hybrid_gathered(
                student_topk_logprobs=log_p[ids].expand(size, count),
                teacher_topk_logprobs=teacher[ids].expand(size, count),
                topk_ids=ids.expand(size, count),
                student_logprobs=log_p,
                teacher_logprobs=teacher,
                sampled_ids=torch.arange(size),
            )
            exactly((p * values).sum(), reverse_kl(student_logits=logits, teacher_logits=teacher))
            exactly(gradient((p * values).sum(), logits), exact_gradient(logits, teacher))


def test_the_hybrids_noise_falls_to_nothing() -> None:
    """Trace of the covariance of one token's gradient on the toy: sampled, then k = 1, 2, 3."""
    logits = STUDENT.log().requires_grad_()
    tokens = every_id(logits, TEACHER.log())
    kinds = [distillation_loss("k2"), *(distillation_loss("reverse_kl_topk_hybrid", k=k) for k in (1, 2, 3))]
    found: list[float] = []
    for loss in kinds:
        slopes = torch.stack([gradient(value, logits) for value in loss(**tokens)])
        exactly((STUDENT.unsqueeze(-1) * slopes).sum(0), exact_gradient(logits, TEACHER.log()))
        found.append(
            ((slopes - exact_gradient(logits, TEACHER.log())).square().sum(-1) * STUDENT).sum().item()
        )
    assert found == pytest.approx([1.514, 1.407, 0.323, 0.0], abs=1e-3)


# --- what does not distil -----------------------------------------------------------------------


@given(size=sizes, seed=seeds, value=st.floats(-5, 5))
def test_a_number_that_ignores_the_sampled_token_teaches_nothing(size: int, seed: int, value: float) -> None:
    logits, _ = laws(size, seed)
    log_p = logits.log_softmax(0)
    loss = surrogate(log_p, torch.full_like(log_p, value), log_p.exp())
    exactly(gradient(loss, logits), torch.zeros_like(logits))


@pytest.mark.parametrize(("chosen", "value"), [([0], 0.4649), ([0, 2], 0.8399), ([0, 1], 0.3733)])
def test_a_topk_value_as_an_advantage_does_not_distil(chosen: list[int], value: float) -> None:
    """Miles' top-k mode: the divergence over K, weights renormalised, in place of the signal."""
    inside = STUDENT[chosen]
    miles = (inside / inside.sum() * (inside / TEACHER[chosen]).log()).sum()
    assert miles.item() == pytest.approx(value, abs=1e-4)
    logits = STUDENT.log().requires_grad_()
    log_p = logits.log_softmax(0)
    slope = gradient(surrogate(log_p, -miles.expand(3), STUDENT), logits)
    exactly(slope, torch.zeros_like(slope))
    assert exact_gradient(logits, TEACHER.log()).norm() > 0.3


@given(size=sizes, seed=seeds)
def test_differentiated_estimators_follow_what_they_are_refused_for(size: int, seed: int) -> None:
    logits, teacher = laws(size, seed)
    log_p = logits.log_softmax(0)
    p, gap = log_p.exp().detach(), log_p - teacher
    exactly(gradient((p * gap).sum(), logits), torch.zeros_like(logits))  # k1
    k3 = (-gap).exp() - 1 + gap
    forward = (teacher.exp() * (teacher - log_p)).sum()
    exactly(gradient((p * k3).sum(), logits), gradient(forward, logits))
    two = k2(student_logprobs=log_p, teacher_logprobs=teacher)
    exactly(gradient((p * two).sum(), logits), exact_gradient(logits, teacher))


def test_numbers_of_the_estimators() -> None:
    logits = STUDENT.log().requires_grad_()
    log_p = logits.log_softmax(0)
    gap = (log_p - TEACHER.log()).detach()
    k3 = (-gap).exp() - 1 + gap
    assert (STUDENT * k3).sum().item() == pytest.approx((STUDENT * gap).sum().item())
    variances = [(STUDENT * (it - (STUDENT * it).sum()).square()).sum().item() for it in (gap, k3)]
    assert variances == pytest.approx([0.857, 8.07], rel=1e-3)
    as_advantage = gradient((STUDENT * k3 * log_p).sum(), logits)
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-5)
    close(as_advantage, torch.tensor([-0.51953, 0.39084, 0.12869], dtype=torch.float64))
    close(gradient((STUDENT * gap * log_p).sum(), logits), REVERSE_GRADIENT)
    attached = (STUDENT * (log_p - TEACHER.log()) * log_p).sum()
    close(gradient(attached, logits), torch.tensor([0.03993, -0.14552, 0.10558], dtype=torch.float64))
    differentiated = (STUDENT * ((TEACHER.log() - log_p).exp() - 1 + log_p - TEACHER.log())).sum()
    close(gradient(differentiated, logits), FORWARD_GRADIENT)
