"""Distillation losses by name: what each kind is, what it takes, and what is refused for which reason."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.losses.toys import KINDS, RowLoss, rows, toy, value_and_slope
from turnpoint.losses import (
    distillation_loss,
    forward_kl,
    forward_kl_topk_tail,
    jensen_shannon,
    k2,
    reverse_kl,
    reverse_kl_topk_hybrid,
    reverse_kl_topk_tail,
)
from turnpoint.losses.distillation import KINDS as KNOWN
from turnpoint.losses.distillation import SAMPLED, TOPK, check_kind
from turnpoint.losses.refused import REFUSED

WHOLE: dict[str, RowLoss] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": partial(jensen_shannon, beta=0.3),
    "reverse_kl_topk_tail": partial(reverse_kl_topk_tail, k=2),
    "forward_kl_topk_tail": partial(forward_kl_topk_tail, k=2),
}


def test_the_table_is_complete() -> None:
    assert set(KINDS) == set(KNOWN)
    assert set(WHOLE) | set(SAMPLED) == set(KNOWN)
    assert set(TOPK) < set(KNOWN)
    assert not set(REFUSED) & set(KNOWN)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_kind_without_a_sample_is_its_function(kind: str) -> None:
    tokens: dict[str, Any] = rows(5, 6)
    actual = value_and_slope(KINDS[kind], {**tokens, "weights": torch.rand(5, dtype=torch.float64)})
    del tokens["sampled_ids"]
    torch.testing.assert_close(actual, value_and_slope(WHOLE[kind], tokens), rtol=0, atol=0)


def test_the_hybrid_is_its_function() -> None:
    tokens: dict[str, Any] = {**rows(9, 6), "weights": torch.rand(9, dtype=torch.float64)}
    expected = value_and_slope(partial(reverse_kl_topk_hybrid, k=2), tokens)
    torch.testing.assert_close(value_and_slope(KINDS["reverse_kl_topk_hybrid"], tokens), expected)


def test_k2_is_its_function_of_the_sampled_ids() -> None:
    tokens: dict[str, Any] = {**rows(9, 6), "weights": torch.rand(9, dtype=torch.float64)}

    def of_logits(
        *, student_logits: Tensor, teacher_logits: Tensor, sampled_ids: Tensor, weights: Tensor
    ) -> Tensor:
        student, teacher = (
            logits.log_softmax(-1).gather(-1, sampled_ids.unsqueeze(-1)).squeeze(-1)
            for logits in (student_logits, teacher_logits)
        )
        return k2(student_logprobs=student, teacher_logprobs=teacher, weights=weights)

    torch.testing.assert_close(value_and_slope(KINDS["k2"], tokens), value_and_slope(of_logits, tokens))


@pytest.mark.parametrize("kind", SAMPLED)
def test_tokens_of_another_law_need_weights(kind: str) -> None:
    options: dict[str, Any] = {"k": 1} if kind in TOPK else {}
    loss = distillation_loss(kind, on_policy=False, **options)
    tokens = toy(sampled_ids=torch.tensor(1))
    with pytest.raises(ValueError, match=rf"{kind} on tokens of another law needs importance weights"):
        loss(**tokens)
    weight = torch.tensor(0.5, dtype=torch.float64)
    expected = distillation_loss(kind, **options)(**tokens, weights=weight)
    assert torch.equal(loss(**tokens, weights=weight), expected)


def test_without_a_sample_stale_tokens_need_none() -> None:
    tokens = toy(sampled_ids=torch.tensor(1))
    loss = distillation_loss("reverse_kl", on_policy=False)
    assert torch.equal(loss(**tokens), KINDS["reverse_kl"](**tokens))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("k1", "its expected gradient is 0; use 'k2', or k1 as an advantage"),
        ("k3", r"its gradient is that of KL\(teacher \|\| student\); use 'forward_kl'"),
        ("low_var_kl", r"its gradient is that of KL\(teacher \|\| student\)"),
        ("topk_advantage", "does not depend on the sampled token: its expected policy gradient is 0"),
        ("reverse_kl_topk", "no divergence: it falls below 0"),
        ("reverse_kl_topk_renormalised", "blind to the mass outside, and at k = 1 equal"),
    ],
)
def test_known_mistakes_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"distillation loss '{name}' is refused: .*{reason}"):
        distillation_loss(name)


@pytest.mark.parametrize("name", REFUSED)
def test_every_refusal_is_one_line_with_a_way_out(name: str) -> None:
    assert "; use" in REFUSED[name]
    assert "\n" not in REFUSED[name]
    with pytest.raises(ValueError, match="is refused"):
        check_kind(name)


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown distillation loss 'js'; known: .*jensen_shannon, .*k2"):
        distillation_loss("js")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("reverse_kl_topk_hybrid", {}, "reverse_kl_topk_hybrid needs k"),
        ("jensen_shannon", {"k": 3}, "k = 3 says nothing to jensen_shannon"),
        ("jensen_shannon", {}, "jensen_shannon needs beta"),
        ("reverse_kl", {"k": 16}, "k = 16 says nothing to reverse_kl"),
        ("k2", {"beta": 0.5}, "beta = 0.5 says nothing to k2"),
    ],
)
def test_each_kind_takes_its_own_options(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distillation_loss(kind, **options)


def test_no_loss_takes_the_student_for_the_teacher() -> None:
    for loss in (*WHOLE.values(), reverse_kl_topk_hybrid, k2):
        kinds = {it.kind for it in inspect.signature(loss).parameters.values()}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
