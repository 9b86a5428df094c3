"""Laws of every distillation loss: equal laws stand still, the teacher is a constant, packing is nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.toys import KINDS, rows, value_and_slope
from tests.tiny import tiny_decoder
from turnpoint.credit import combine_advantages
from turnpoint.losses import (
    chunked_distillation,
    policy_gradient_loss,
    reverse_kl_topk_hybrid_gathered,
)
from turnpoint.losses.reductions import reduce_tokens
from turnpoint.models.heads import linear_head
from turnpoint.teachers import discounted_signal, sampled_token_signal

every_kind = pytest.mark.parametrize("kind", KINDS)


def sum_and_slope(
    kind: str, tokens: dict[str, Any], weights: Tensor, denominator: float
) -> tuple[Tensor, Tensor]:
    """Returns the loss as a trainer averages it, and its gradient by the student's logits."""
    values = KINDS[kind](**tokens)
    mask = torch.ones_like(values, dtype=torch.bool)
    loss = reduce_tokens(values, mask=mask, denominator=denominator, weights=weights)
    leaf: Tensor = tokens["student_logits"]
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def part_of(tokens: dict[str, Any], index: Tensor) -> dict[str, Any]:
    return {
        name: it.detach()[index].clone().requires_grad_(name == "student_logits")
        for name, it in tokens.items()
    }


# --- equal laws ---------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_student_that_is_its_teacher_stands_still(kind: str, dtype: torch.dtype, scale: float) -> None:
    tokens: dict[str, Any] = rows(20, 9, scale=scale)
    with torch.no_grad():
        tokens["student_logits"][:, 7:] = -math.inf  # a padded head
    student = tokens["student_logits"].detach().to(dtype)
    tokens |= {"student_logits": student.clone().requires_grad_(), "teacher_logits": student}
    value, slope = value_and_slope(KINDS[kind], tokens)
    assert torch.equal(value, torch.zeros_like(value))
    assert torch.equal(slope, torch.zeros_like(slope))


@pytest.mark.parametrize("objective", ["ppo_clip", "cispo", "reinforce"])
def test_the_signal_of_an_equal_teacher_stands_still(objective: str) -> None:
    logprobs = -torch.rand(9)
    leaf = logprobs.clone().requires_grad_()
    signal = sampled_token_signal(student_logprobs=leaf, teacher_logprobs=logprobs)
    returns = discounted_signal(signal, discount=0.9, sequence_ids=torch.arange(9) // 4)
    loss, _ = policy_gradient_loss(
        logprobs=leaf,
        old_logprobs=logprobs - 0.1,
        advantages=combine_advantages(None, returns, coef=1.0),
        mask=torch.ones(9, dtype=torch.bool),
        denominator=9.0,
        objective=objective,
    )
    assert loss.item() == 0.0
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], torch.zeros(9))


# --- the teacher is a constant ------------------------------------------------------------------


@every_kind
def test_nothing_flows_to_the_teacher(kind: str) -> None:
    tokens: dict[str, Any] = rows(6, 5)
    tokens["weights"] = torch.rand(6, dtype=torch.float64, requires_grad=True)
    tokens["teacher_logits"].requires_grad_()
    KINDS[kind](**tokens).sum().backward()
    assert tokens["student_logits"].grad.abs().max() > 0
    assert tokens["teacher_logits"].grad is None
    assert tokens["weights"].grad is None


def test_nothing_flows_to_a_served_teacher_or_through_the_signal() -> None:
    student, teacher, drawn, scored = (
        torch.rand(shape).neg().requires_grad_() for shape in [(4, 2)] * 2 + [(4,)] * 2
    )
    reverse_kl_topk_hybrid_gathered(
        student_topk_logprobs=student,
        teacher_topk_logprobs=teacher,
        topk_ids=torch.tensor([[0, 1]] * 4),
        student_logprobs=drawn,
        teacher_logprobs=scored,
        sampled_ids=torch.tensor([0, 1, 2, 3]),
    ).sum().backward()
    assert student.grad is not None
    assert drawn.grad is not None
    assert drawn.grad[:2].tolist() == [0.0, 0.0]  # inside K: the exact part holds it
    assert (drawn.grad[2:] != 0).all()
    assert teacher.grad is None
    assert scored.grad is None
    assert not sampled_token_signal(student_logprobs=drawn, teacher_logprobs=scored).requires_grad


# --- packing ------------------------------------------------------------------------------------


@every_kind
@given(cuts=st.lists(st.integers(0, 20), max_size=4).map(sorted), seed=st.integers(0, 50))
def test_micro_batches_add_up_to_the_step(kind: str, cuts: list[int], seed: int) -> None:
    tokens, weights = rows(20, 6, seed=seed), torch.rand(20, dtype=torch.float64)
    whole, slope = sum_and_slope(kind, tokens, weights, 20.0)
    total, slopes = torch.zeros((), dtype=torch.float64), torch.zeros_like(slope)
    for start, end in zip([0, *cuts], [*cuts, 20], strict=True):
        index = torch.arange(start, end)
        value, own = sum_and_slope(kind, part_of(tokens, index), weights[index], 20.0)
        total, slopes = total + value, slopes.index_add(0, index, own)
    torch.testing.assert_close((total, slopes), (whole, slope))


@every_kind
@given(order=st.permutations(range(10)))
def test_order_and_padding_of_tokens_do_not_matter(kind: str, order: list[int]) -> None:
    tokens, index = rows(10, 6), torch.tensor(order)
    value, slope = value_and_slope(KINDS[kind], tokens)
    moved = value_and_slope(KINDS[kind], part_of(tokens, torch.cat([index, index[:3]])))
    torch.testing.assert_close((moved[0][:10], moved[1][:10]), (value[index], slope[index]))


@every_kind
def test_shape_does_not_matter(kind: str) -> None:
    tokens = rows(12, 6)
    folded = {name: it.detach().reshape(3, 4, *it.shape[1:]) for name, it in tokens.items()}
    torch.testing.assert_close(KINDS[kind](**folded).flatten(), KINDS[kind](**tokens).detach())
    one = {name: it.detach()[0] for name, it in tokens.items()}
    torch.testing.assert_close(KINDS[kind](**one), KINDS[kind](**tokens).detach()[0])
    assert KINDS[kind](**part_of(tokens, torch.arange(0))).shape == (0,)


# --- the vocabulary -----------------------------------------------------------------------------


@every_kind
@given(order=st.permutations(range(7)))
def test_names_of_ids_do_not_matter(kind: str, order: list[int]) -> None:
    tokens, index = rows(10, 7), torch.tensor(order)
    value, slope = value_and_slope(KINDS[kind], tokens)
    renamed = {
        "student_logits": tokens["student_logits"].detach()[:, index].requires_grad_(),
        "teacher_logits": tokens["teacher_logits"][:, index],
        "sampled_ids": index.argsort()[tokens["sampled_ids"]],
    }
    torch.testing.assert_close(value_and_slope(KINDS[kind], renamed), (value, slope[:, index]))


@every_kind
def test_padded_rows_of_both_heads_change_nothing(kind: str) -> None:
    tokens: dict[str, Any] = rows(10, 7)
    value, slope = value_and_slope(KINDS[kind], tokens)
    padded = {**tokens}
    for side in ("student_logits", "teacher_logits"):
        padded[side] = torch.nn.functional.pad(tokens[side].detach(), (0, 5), value=-math.inf)
    padded["student_logits"].requires_grad_()
    padded_value, padded_slope = value_and_slope(KINDS[kind], padded)
    torch.testing.assert_close((padded_value, padded_slope[:, :7]), (value, slope))
    assert padded_slope[:, 7:].abs().max() < 1e-40


@every_kind
def test_levels_of_logits_do_not_matter(kind: str) -> None:
    tokens: dict[str, Any] = rows(10, 7)
    shift = torch.linspace(-50, 50, 10, dtype=torch.float64).unsqueeze(-1)
    shifted = {**tokens, "student_logits": (tokens["student_logits"].detach() + shift).requires_grad_()}
    value, slope = value_and_slope(KINDS[kind], tokens)
    torch.testing.assert_close(value_and_slope(KINDS[kind], shifted), (value, slope))
    assert slope.sum(-1).abs().max() < 1e-12  # a level is not a law: no gradient along it


@every_kind
def test_heads_of_decoders(kind: str) -> None:
    """Two decoders of one tokenizer: a step of the student's weights and nothing of the teacher's."""
    student, teacher = tiny_decoder(seed=1), tiny_decoder(seed=2)
    width = student.head.weight.shape[1]
    draws = torch.Generator().manual_seed(0)
    given_tokens: dict[str, Any] = {
        "student_hidden": torch.randn(9, width, generator=draws).requires_grad_(),
        "teacher_hidden": torch.randn(9, width, generator=draws),
        "sampled_ids": torch.randint(student.vocab_size, (9,), generator=draws),
    }
    values = chunked_distillation(
        KINDS[kind],
        student_head=linear_head(student),
        teacher_head=linear_head(teacher),
        **given_tokens,
        chunk=4,
    )
    whole = KINDS[kind](
        student_logits=student.logits(given_tokens["student_hidden"]),
        teacher_logits=teacher.logits(given_tokens["teacher_hidden"]),
        sampled_ids=given_tokens["sampled_ids"],
    )
    torch.testing.assert_close(values, whole)
    trained = [given_tokens["student_hidden"], student.head.weight]
    for ours, theirs in zip(
        torch.autograd.grad(values.sum(), trained), torch.autograd.grad(whole.sum(), trained), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert teacher.head.weight.grad is None
