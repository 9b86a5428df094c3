"""Group advantages: hand values, a naive loop, degenerate groups, what each baseline does to a gradient."""

from __future__ import annotations

import doctest
import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.records import branched_group, flat_group
from turnpoint.credit import GroupAdvantage, group, group_advantages
from turnpoint.protocols import Advantage
from turnpoint.types import Verdict

BASELINES = ["mean", "leave_one_out"]
SCALES = ["none", "std"]


def naive(rewards: list[float], valid: list[bool], baseline: str, scale: str) -> list[float]:
    """The definition, one member at a time."""
    kept = [r for r, v in zip(rewards, valid, strict=True) if v]
    result: list[float] = []
    for i, (reward, is_valid) in enumerate(zip(rewards, valid, strict=True)):
        others = [r for j, (r, v) in enumerate(zip(rewards, valid, strict=True)) if v and j != i]
        if not is_valid or not others:
            result.append(0.0)
            continue
        base = statistics.fmean(kept if baseline == "mean" else others)
        spread = statistics.pstdev(kept) + 1e-6 if scale == "std" else 1.0
        result.append((reward - base) / spread)
    return result


def test_example_in_the_docstring() -> None:
    assert doctest.testmod(group) == (0, 1)


@pytest.mark.parametrize(
    ("baseline", "scale", "expected"),
    [
        ("mean", "none", [0.75, -0.25, -0.25, -0.25]),
        ("leave_one_out", "none", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("mean", "std", [x / (math.sqrt(3) / 4 + 1e-6) for x in [0.75, -0.25, -0.25, -0.25]]),
        ("leave_one_out", "std", [x / (math.sqrt(3) / 4 + 1e-6) for x in [1.0, -1 / 3, -1 / 3, -1 / 3]]),
    ],
)
def test_hand_values(baseline: str, scale: str, expected: list[float]) -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    got = group_advantages(rewards, baseline=baseline, scale=scale)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@given(
    members=st.lists(st.tuples(st.floats(-100, 100), st.booleans()), max_size=9),
    baseline=st.sampled_from(BASELINES),
    scale=st.sampled_from(SCALES),
)
def test_equals_the_definition(members: list[tuple[float, bool]], baseline: str, scale: str) -> None:
    rewards, valid = [r for r, _ in members], [v for _, v in members]
    got = group_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        baseline=baseline,
        scale=scale,
        valid=torch.tensor(valid, dtype=torch.bool),
    )
    assert got.tolist() == pytest.approx(naive(rewards, valid, baseline, scale), rel=1e-6, abs=1e-6)


def test_std_is_that_of_the_population() -> None:
    got = group_advantages(torch.tensor([2.0, 0.0], dtype=torch.float64), scale="std")
    assert got.tolist() == pytest.approx([1 / (1 + 1e-6), -1 / (1 + 1e-6)], rel=1e-12)


def test_std_survives_a_large_common_offset() -> None:
    rewards = torch.tensor([1e8 + 1, 1e8 - 1], dtype=torch.float64)
    assert group_advantages(rewards, scale="std").tolist() == pytest.approx([1.0, -1.0], rel=1e-5)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reward", [0.1, -0.7, 1e300, 5e-324, 1 / 3])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_equal_rewards_give_exact_zeros(baseline: str, scale: str, reward: float, size: int) -> None:
    rewards = torch.full((size,), reward, dtype=torch.float64)
    assert group_advantages(rewards, baseline=baseline, scale=scale).tolist() == [0.0] * size


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", SCALES)
def test_degenerate_groups_are_zero_not_nan(baseline: str, scale: str) -> None:
    names: Any = {"baseline": baseline, "scale": scale}
    nan = math.nan
    assert group_advantages([], **names).tolist() == []
    assert group_advantages([3.0], **names).tolist() == [0.0]
    assert group_advantages([nan, nan], valid=[False, False], **names).tolist() == [0.0, 0.0]
    assert group_advantages([nan, 5.0, nan], valid=[False, True, False], **names).tolist() == [0.0] * 3


def test_takes_what_holds_numbers_and_keeps_a_floating_dtype() -> None:
    assert group_advantages(torch.tensor([1, 0])).tolist() == [0.5, -0.5]
    assert group_advantages(torch.tensor([True, False])).tolist() == [0.5, -0.5]
    assert group_advantages([1, 0]).dtype == torch.float32
    assert group_advantages(torch.tensor([1.0, 0.0], dtype=torch.float64)).dtype == torch.float64
    assert group_advantages(torch.tensor([1.0, 0.0], dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_list_rewards_are_not_rounded_before_they_are_compared() -> None:
    assert group_advantages([1e9 + 1, 1e9]).tolist() == [0.5, -0.5]


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_valid_member_needs_a_finite_reward(reward: float) -> None:
    with pytest.raises(ValueError, match="finite reward"):
        group_advantages([1.0, reward])
    group_advantages([1.0, reward], valid=[True, False])


def test_refuses_unknown_names_and_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="unknown baseline 'median'; known: mean, leave_one_out"):
        group_advantages([1.0], baseline="median")
    with pytest.raises(ValueError, match="unknown scale 'var'; known: none, std"):
        group_advantages([1.0], scale="var")
    with pytest.raises(ValueError, match=r"\[3\] and \[2\]"):
        group_advantages([1.0, 2.0, 3.0], valid=[True, False])
    with pytest.raises(ValueError, match="unknown baseline"):
        GroupAdvantage(baseline="median")


@pytest.mark.parametrize(("baseline", "factor"), [("mean", 2 / 3), ("leave_one_out", 1.0)])
def test_expected_gradient_by_enumeration(baseline: str, factor: float) -> None:
    # All 27 groups of three draws from a softmax over three ids, weighted by their exact probability.
    logits = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([1.0, 0.2, -0.4], dtype=torch.float64)
    truth = torch.autograd.grad((logits.softmax(0) * rewards).sum(), logits)[0]
    expected = torch.zeros(3, dtype=torch.float64)
    for draw in itertools.product(range(3), repeat=3):
        logprobs = logits.log_softmax(0)[list(draw)]
        surrogate = (group_advantages(rewards[list(draw)], baseline=baseline) * logprobs).mean()
        expected += logprobs.sum().exp().detach() * torch.autograd.grad(surrogate, logits)[0]
    torch.testing.assert_close(expected, factor * truth)


def test_credit_is_uniform_over_the_tokens_a_member_owns() -> None:
    rule: Advantage = GroupAdvantage()
    credits = rule.credit(branched_group())
    # rewards 1, 0, invalid, 0.25: mean 5/12 over the three valid ones
    assert [c.segment for c in credits] == [1, 3, 4, 5, 6]
    expected = {1: 7 / 12, 3: 7 / 12, 4: -5 / 12, 5: 0.0, 6: -1 / 6}
    for credit in credits:
        assert credit.advantages is not None
        assert credit.advantages.tolist() == pytest.approx([expected[credit.segment]] * len(credit.weights))
        assert set(credit.weights.tolist()) == {0.0 if credit.segment == 5 else 1.0}
        assert credit.teacher is None


def test_credit_uses_the_named_baseline_and_scale() -> None:
    group = flat_group([Verdict.scored(2.0), Verdict.scored(0.0)])
    first = GroupAdvantage(baseline="leave_one_out", scale="std").credit(group)[0]
    assert first.advantages is not None
    assert first.advantages.tolist() == pytest.approx([2 / (1 + 1e-6)] * 2)


def test_an_invalid_verdict_that_carries_a_reward_is_still_absent() -> None:
    odd = Verdict(reward=100.0, valid=False, reason="judge disagreed with itself")
    credits = GroupAdvantage().credit(flat_group([Verdict.scored(1.0), odd, Verdict.scored(0.0)]))
    assert [float(c.advantages[0]) for c in credits if c.advantages is not None] == [0.5, 0.0, -0.5]
    assert [float(c.weights[0]) for c in credits] == [1.0, 0.0, 1.0]
