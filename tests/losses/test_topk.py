"""KL from a few candidates: published values, lower bounds, the hybrid from logits and from a server."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.toys import (
    REVERSE_GRADIENT,
    STUDENT,
    TEACHER,
    RowLoss,
    by_autograd,
    rows,
    toy,
    value_and_slope,
)
from turnpoint.losses import (
    forward_kl,
    forward_kl_topk_tail,
    reverse_kl,
    reverse_kl_topk_hybrid,
    reverse_kl_topk_hybrid_gathered,
    reverse_kl_topk_tail,
)

TAILS: dict[str, tuple[RowLoss, RowLoss]] = {
    "reverse_kl_topk_tail": (reverse_kl_topk_tail, reverse_kl),
    "forward_kl_topk_tail": (forward_kl_topk_tail, forward_kl),
}
every_tail = pytest.mark.parametrize("name", TAILS)


def two(n: int, size: int, **options: Any) -> dict[str, Tensor]:
    tokens = rows(n, size, **options)
    del tokens["sampled_ids"]
    return tokens


def gathered(
    *,
    student_logits: Tensor,
    teacher_logits: Tensor,
    sampled_ids: Tensor,
    k: int,
    weights: Tensor | None = None,
) -> Tensor:
    """The hybrid's second form, from what a trainer and a server would hand over."""
    student, teacher = (logits.log_softmax(-1) for logits in (student_logits, teacher_logits))
    best, drawn = student_logits.topk(k).indices, sampled_ids.unsqueeze(-1)
    return reverse_kl_topk_hybrid_gathered(
        student_topk_logprobs=student.gather(-1, best),
        teacher_topk_logprobs=teacher.gather(-1, best),
        topk_ids=best,
        student_logprobs=student.gather(-1, drawn).squeeze(-1),
        teacher_logprobs=teacher.gather(-1, drawn).squeeze(-1),
        sampled_ids=sampled_ids,
        weights=weights,
    )


# --- tail ---------------------------------------------------------------------------------------


def test_hand_values_of_the_tail() -> None:
    value, slope = value_and_slope(partial(reverse_kl_topk_tail, k=1), toy())
    assert value.item() == pytest.approx(0.1776, abs=1e-4)
    opposite = torch.tensor([0.224, -0.020, -0.204], dtype=torch.float64)
    torch.testing.assert_close(slope, opposite, rtol=0, atol=1e-3)
    assert slope[0] * REVERSE_GRADIENT[0] < 0  # the bound's gradient is not the divergence's
    first = toy(teacher_logits=(TEACHER + torch.tensor([1e-9, -1e-9, 0.0])).log())  # breaks the tie for a
    assert forward_kl_topk_tail(**first, k=1).item() == pytest.approx(0.2010, abs=1e-4)
    assert reverse_kl_topk_tail(**toy(), k=2).item() == pytest.approx(0.759157, abs=1e-6)
    assert forward_kl_topk_tail(**toy(), k=2).item() == pytest.approx(1.293503, abs=1e-6)


def test_a_tail_of_one_id_is_exact_where_the_truncated_sum_is_negative() -> None:
    laws = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log()
    value = forward_kl_topk_tail(student_logits=laws[0], teacher_logits=laws[1], k=1)
    assert value.item() == pytest.approx(0.311239, abs=1e-6)
    assert 0.6 * math.log(0.6 / 0.9) == pytest.approx(-0.243279, abs=1e-6)  # verl's sum over K alone


@every_tail
@given(size=st.integers(2, 9), seed=st.integers(0, 300), scale=st.sampled_from([0.1, 1.0, 6.0]))
def test_value_and_gradient_are_those_of_the_coarse_laws(
    name: str, size: int, seed: int, scale: float
) -> None:
    tokens, k = two(3, size, seed=seed, scale=scale), 1 + seed % (size - 1)
    actual = value_and_slope(partial(TAILS[name][0], k=k), tokens)
    expected = value_and_slope(by_autograd(name, k=k), tokens)
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)


@every_tail
@given(size=st.integers(2, 12), seed=st.integers(0, 300))
def test_is_a_lower_bound_that_grows_with_k(name: str, size: int, seed: int) -> None:
    tokens = two(4, size, seed=seed)
    tail, full = TAILS[name]
    values = torch.stack([tail(**tokens, k=k).detach() for k in range(1, size + 1)])
    assert (values >= 0).all()
    assert (values.diff(dim=0) >= -1e-12).all()
    torch.testing.assert_close(values[-1], full(**tokens).detach())
    torch.testing.assert_close(values[-2], values[-1])  # a tail of one id


@every_tail
def test_proportional_tails_lose_nothing(name: str) -> None:
    tail = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    laws = {
        "student_logits": torch.cat([torch.tensor([0.7]), 0.3 * tail]).log().requires_grad_(),
        "teacher_logits": torch.cat([torch.tensor([0.55]), 0.45 * tail]).log(),
    }
    bound, full = TAILS[name]
    actual = value_and_slope(partial(bound, k=1), laws)
    torch.testing.assert_close(actual, value_and_slope(full, laws), check_dtype=False)


def test_a_small_tail_keeps_its_digits() -> None:
    """The student's tail is e^-14: of 1 - p, rounded to float32, a sixteenth would be rounding."""
    student, teacher = torch.tensor([14.0, 0.0, -1.0]), torch.tensor([0.5, 0.0, 0.0])
    value = forward_kl_topk_tail(student_logits=student, teacher_logits=teacher, k=1)
    p, q = student.double().softmax(-1), teacher.double().softmax(-1)
    exact = q[0] * (q[0] / p[0]).log() + q[1:].sum() * (q[1:].sum() / p[1:].sum()).log()
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)


# --- hybrid -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3])
def test_hand_values_of_the_hybrid(k: int) -> None:
    order = [0, 2, 1]  # by the student's probability
    terms = STUDENT * (STUDENT / TEACHER).log()
    exact = sum(terms[at].item() for at in order[:k])
    for drawn in range(3):
        extra = 0.0 if drawn in order[:k] else (STUDENT[drawn] / TEACHER[drawn]).log().item()
        value = reverse_kl_topk_hybrid(**toy(), sampled_ids=torch.tensor(drawn), k=k)
        assert value.item() == pytest.approx(exact + extra)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_the_gathered_form_is_the_same(k: int) -> None:
    tokens = rows(40, 7)
    weights = torch.rand(40, dtype=torch.float64) + 0.5
    for given_weights in (None, weights):
        served, full = (
            value_and_slope(partial(form, k=k, weights=given_weights), tokens)
            for form in (gathered, reverse_kl_topk_hybrid)
        )
        torch.testing.assert_close(served, full)


def test_weights_act_on_the_sampled_term_alone() -> None:
    tokens = rows(40, 7)
    halves = torch.full((40,), 0.5, dtype=torch.float64)
    nothing = torch.zeros(40, dtype=torch.float64)
    whole, half, exact = (
        reverse_kl_topk_hybrid(**tokens, k=2, weights=weights).detach() for weights in (None, halves, nothing)
    )
    torch.testing.assert_close(half - exact, (whole - exact) / 2)
    inside = (tokens["student_logits"].topk(2).indices == tokens["sampled_ids"].unsqueeze(-1)).any(-1)
    assert torch.equal(whole[inside], exact[inside])
    assert (whole[~inside] != exact[~inside]).all()


@pytest.mark.parametrize("side", ["student_logits", "teacher_logits"])
@pytest.mark.parametrize("form", [reverse_kl_topk_hybrid, gathered])
@pytest.mark.parametrize("k", [1, 4, 6])
def test_impossible_ids_are_finite(side: str, form: RowLoss, k: int) -> None:
    tokens: dict[str, Any] = rows(30, 6)
    with torch.no_grad():
        tokens["student_logits"][:, 4] = -math.inf  # both sides: a padded row of the head
        tokens["teacher_logits"][:, 4] = -math.inf
        tokens[side][:, 1] = -math.inf
    value, slope = value_and_slope(partial(form, k=k), tokens)
    assert value.isfinite().all()
    assert slope.isfinite().all()
    assert slope[tokens["sampled_ids"] != 4, 4].abs().max() < 1e-40


@every_tail
@pytest.mark.parametrize("side", ["student_logits", "teacher_logits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_ids_leave_a_tail_finite(name: str, side: str, dtype: torch.dtype) -> None:
    for k in (1, 2, 3, 5):
        tokens: dict[str, Any] = {side: logits.detach().to(dtype) for side, logits in two(30, 5).items()}
        tokens[side][:, 2:] = -math.inf  # from k = 2 on nothing is left outside
        tokens["student_logits"].requires_grad_()
        value, slope = value_and_slope(partial(TAILS[name][0], k=k), tokens)
        assert value.isfinite().all()
        assert slope.isfinite().all()


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, -1, 4])
def test_refuses_a_k_that_is_no_part_of_the_vocabulary(k: int) -> None:
    message = f"k = {k} of a vocabulary of 3 ids"
    for tail, _ in TAILS.values():
        with pytest.raises(ValueError, match=message):
            tail(**toy(), k=k)
    with pytest.raises(ValueError, match=message):
        reverse_kl_topk_hybrid(**toy(), sampled_ids=torch.tensor(0), k=k)
