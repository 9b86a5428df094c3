"""Divergences over a vocabulary: published values, autograd's gradients, impossible ids, padded heads."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.toys import (
    FORWARD_GRADIENT,
    REVERSE_GRADIENT,
    RowLoss,
    by_autograd,
    rows,
    toy,
    value_and_slope,
)
from turnpoint.losses import forward_kl, jensen_shannon, reverse_kl
from turnpoint.losses.laws import LOWEST_LOGPROB, log_laws


def js(**tokens: Any) -> Tensor:
    return jensen_shannon(beta=0.3, **tokens)


DIVERGENCES: dict[str, RowLoss] = {"forward": forward_kl, "reverse": reverse_kl, "jensen_shannon": js}
every_divergence = pytest.mark.parametrize("name", DIVERGENCES)


def two(n: int, size: int, **options: Any) -> dict[str, Tensor]:
    tokens = rows(n, size, **options)
    del tokens["sampled_ids"]
    return tokens


def logs(student: list[float], teacher: list[float]) -> dict[str, Tensor]:
    both = (torch.tensor(law, dtype=torch.float64).log() for law in (student, teacher))
    return dict(zip(("student_logits", "teacher_logits"), both, strict=True))


# --- values -------------------------------------------------------------------------------------


def test_hand_values() -> None:
    assert forward_kl(**toy()).item() == pytest.approx(-0.2278 + 1.5673 - 0.0461, abs=2e-4)
    assert forward_kl(**toy()).item() == pytest.approx(1.293503, abs=1e-6)
    assert reverse_kl(**toy()).item() == pytest.approx(0.3626 - 0.0640 + 0.4605, abs=1e-4)
    assert reverse_kl(**toy()).item() == pytest.approx(0.759157, abs=1e-6)


@pytest.mark.parametrize(("beta", "value"), [(0.1, 0.09397), (0.5, 0.19400), (0.9, 0.06635)])
def test_jensen_shannon_weighs_the_teacher_by_beta(beta: float, value: float) -> None:
    assert jensen_shannon(**toy(), beta=beta).item() == pytest.approx(value, abs=1e-5)


def test_values_of_trl() -> None:
    laws = logs([0.1, 0.9], [0.9, 0.1])
    for beta, value in [(0.0, 1.757780), (0.5, 0.368064), (1.0, 1.757780)]:
        assert jensen_shannon(**laws, beta=beta).item() == pytest.approx(value, abs=1e-6)


def test_the_value_of_verl() -> None:
    laws = logs([0.9, 0.1], [0.6, 0.4])
    assert forward_kl(**laws).item() == pytest.approx(0.311239, abs=1e-6)


@pytest.mark.parametrize(("beta", "end"), [(0.0, forward_kl), (1.0, reverse_kl), (0, forward_kl)])
def test_the_ends_of_jensen_shannon_are_the_divergences_not_the_limits(beta: float, end: RowLoss) -> None:
    tokens = two(5, 7)
    at_end = value_and_slope(partial(jensen_shannon, beta=beta), tokens)
    torch.testing.assert_close(at_end, value_and_slope(end, tokens), rtol=0, atol=0)
    near = jensen_shannon(**tokens, beta=abs(beta - 1e-9))
    assert near.max() < 1e-6 < at_end[0].min()


# --- gradients ----------------------------------------------------------------------------------


def test_hand_gradients() -> None:
    torch.testing.assert_close(value_and_slope(forward_kl, toy())[1], FORWARD_GRADIENT)
    torch.testing.assert_close(value_and_slope(reverse_kl, toy())[1], REVERSE_GRADIENT, rtol=0, atol=1e-5)


@every_divergence
@given(size=st.integers(1, 9), seed=st.integers(0, 500), scale=st.sampled_from([0.1, 1.0, 8.0]))
def test_value_and_gradient_are_autograds(name: str, size: int, seed: int, scale: float) -> None:
    tokens = two(3, size, seed=seed, scale=scale)
    expected = value_and_slope(by_autograd(name), tokens)
    torch.testing.assert_close(value_and_slope(DIVERGENCES[name], tokens), expected, rtol=1e-9, atol=1e-12)


@every_divergence
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_less_precise_logits_are_read_in_float32(name: str, dtype: torch.dtype) -> None:
    tokens = {side: logits.detach().to(dtype) for side, logits in two(4, 50).items()}
    exact = {side: logits.double().requires_grad_() for side, logits in tokens.items()}
    tokens["student_logits"].requires_grad_()
    (value, slope), (true_value, true_slope) = (
        value_and_slope(DIVERGENCES[name], given) for given in (tokens, exact)
    )
    assert (value.dtype, slope.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(value.double(), true_value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slope.double(), true_slope, rtol=1e-2, atol=1e-5)


@every_divergence
def test_upstream_weights_scale_each_token(name: str) -> None:
    tokens, weights = two(3, 4), torch.tensor([2.0, 0.0, -0.5], dtype=torch.float64)
    _, slope = value_and_slope(DIVERGENCES[name], tokens)
    weighed = (DIVERGENCES[name](**tokens) * weights).sum()
    actual = torch.autograd.grad(weighed, tokens["student_logits"])[0]
    torch.testing.assert_close(actual, slope * weights.unsqueeze(-1))


@every_divergence
def test_a_second_derivative_is_refused(name: str) -> None:
    tokens = two(2, 3)
    first = torch.autograd.grad(
        DIVERGENCES[name](**tokens).square().sum(), tokens["student_logits"], create_graph=True
    )
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first[0].sum().backward()


# --- impossible ids -----------------------------------------------------------------------------


@every_divergence
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ids_that_both_sides_exclude_change_nothing(name: str, dtype: torch.dtype) -> None:
    tokens = {side: logits.detach().to(dtype) for side, logits in two(4, 6).items()}
    padded = {
        side: torch.nn.functional.pad(logits, (0, 3), value=-math.inf).requires_grad_()
        for side, logits in tokens.items()
    }
    tokens["student_logits"].requires_grad_()
    value, slope = value_and_slope(DIVERGENCES[name], tokens)
    padded_value, padded_slope = value_and_slope(DIVERGENCES[name], padded)
    torch.testing.assert_close(padded_value, value)
    torch.testing.assert_close(padded_slope[:, :6], slope)
    assert padded_slope[:, 6:].abs().max() < 1e-40


@every_divergence
@pytest.mark.parametrize("side", ["student_logits", "teacher_logits"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_id_that_one_side_excludes_is_finite(name: str, side: str, dtype: torch.dtype) -> None:
    tokens = {given: logits.detach().to(dtype) for given, logits in two(4, 6).items()}
    tokens[side][:, 2] = -math.inf
    tokens["student_logits"].requires_grad_()
    value, slope = value_and_slope(DIVERGENCES[name], tokens)
    assert value.isfinite().all()
    assert slope.isfinite().all()
    assert (value > 0).all()
    if side == "teacher_logits":
        assert (slope[:, 2] > 0).all()  # descent lowers what the teacher finds impossible


def test_the_impossible_costs_a_hundred_nats() -> None:
    laws = logs([0.75, 0.25], [1.0, 0.0])
    assert reverse_kl(**laws).item() == pytest.approx(
        0.75 * math.log(0.75) + 0.25 * (math.log(0.25) - LOWEST_LOGPROB)
    )
    assert forward_kl(**laws).item() == pytest.approx(-math.log(0.75))
    swapped = {"student_logits": laws["teacher_logits"], "teacher_logits": laws["student_logits"]}
    assert reverse_kl(**swapped).item() == pytest.approx(-math.log(0.75))


@every_divergence
@pytest.mark.parametrize("gap", [90.0, 1e3, 1e30])
def test_opposite_certainties_are_finite(name: str, gap: float) -> None:
    tokens = {
        "student_logits": torch.tensor([0.0, gap], requires_grad=True),
        "teacher_logits": torch.tensor([gap, 0.0]),
    }
    value, slope = value_and_slope(DIVERGENCES[name], tokens)
    assert value.isfinite()
    assert slope.isfinite().all()
    entropy = -0.3 * math.log(0.3) - 0.7 * math.log(0.7)
    assert value.item() == pytest.approx(entropy if name == "jensen_shannon" else min(gap, 100.0), rel=1e-6)


@every_divergence
def test_a_nan_is_not_hidden(name: str) -> None:
    for side in ("student_logits", "teacher_logits"):
        tokens = two(2, 3)
        with torch.no_grad():
            tokens[side][1, 0] = math.nan
        assert DIVERGENCES[name](**tokens).isnan().tolist() == [False, True]


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 4), (1, 3), (3,)])
def test_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    bare = inspect.unwrap(log_laws)  # without the tests' own shape check
    with pytest.raises(ValueError, match=r"student logits \[2, 3\] and teacher logits \[.*; cut both"):
        bare(student_logits=torch.zeros(2, 3), teacher_logits=torch.zeros(shape))


@pytest.mark.parametrize("beta", [-0.1, 1.1, math.nan])
def test_refuses_a_beta_that_is_no_share(beta: float) -> None:
    with pytest.raises(ValueError, match=r"beta = .* lies in \[0, 1\]"):
        jensen_shannon(**toy(), beta=beta)
