"""What length costs: the penalty's shape, which tokens count, and truncated rollouts that are not there."""

from __future__ import annotations

import dataclasses
import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import branched_group, flat_group, verdict
from turnpoint.credit import GroupAdvantage, MaskTruncated, SoftPenalty, overlong, overlong_penalty
from turnpoint.training import pack_step
from turnpoint.types import FinishReason, Group, SegmentCredit, Verdict


def test_example_in_the_docstring() -> None:
    assert doctest.testmod(overlong) == (0, 1)


# --- the penalty --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0)],
)
def test_the_papers_figures(length: int, penalty: float) -> None:
    assert overlong_penalty(length, max_tokens=20480, buffer_tokens=4096) == pytest.approx(penalty)
    halved = overlong_penalty(length, max_tokens=20480, buffer_tokens=4096, factor=0.5)
    assert halved == pytest.approx(penalty / 2)


@given(max_tokens=st.integers(1, 100), share=st.floats(0, 1), factor=st.floats(0.01, 10))
def test_falls_from_zero_to_the_factor_in_equal_steps(max_tokens: int, share: float, factor: float) -> None:
    buffer = max(1, round(share * max_tokens))
    values = [
        overlong_penalty(length, max_tokens=max_tokens, buffer_tokens=buffer, factor=factor)
        for length in range(max_tokens + 3)
    ]
    free = max_tokens - buffer
    assert values[: free + 1] == [0.0] * (free + 1)
    assert values[max_tokens:] == [-factor] * 3
    steps = [after - before for before, after in zip(values[free:], values[free + 1 : -2], strict=False)]
    assert steps == pytest.approx([-factor / buffer] * buffer)


def test_refuses_what_is_no_penalty() -> None:
    with pytest.raises(ValueError, match=r"no -1 tokens"):
        overlong_penalty(-1, max_tokens=4, buffer_tokens=2)
    for buffer in (0, -1, 5):
        with pytest.raises(ValueError, match=rf"buffer_tokens = {buffer} must lie in 1\.\.max_tokens = 4"):
            SoftPenalty(max_tokens=4, buffer_tokens=buffer)
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be positive and finite"):
            SoftPenalty(max_tokens=4, buffer_tokens=2, factor=factor)


# --- in credit ----------------------------------------------------------------------------------


def per_member(credits: list[SegmentCredit]) -> list[tuple[float, float]]:
    """Returns advantage and weight of the first token of each segment."""
    return [(float(c.advantages[0]), float(c.weights[0])) for c in credits if c.advantages is not None]


def test_the_penalty_comes_before_the_baseline() -> None:
    # three solved rollouts of 4, 6 and 8 tokens of at most 8: compared by 1, 0.5 and 0
    group = flat_group([Verdict.scored(1.0)] * 3, lengths=[4, 6, 8])
    soft = SoftPenalty(max_tokens=8, buffer_tokens=4)
    assert per_member(GroupAdvantage(overlong=soft).credit(group)) == [(0.5, 1), (0.0, 1), (-0.5, 1)]
    std = per_member(GroupAdvantage(scale="std", overlong=soft).credit(group))
    assert [a for a, _ in std] == pytest.approx([math.sqrt(1.5), 0, -math.sqrt(1.5)], rel=1e-5, abs=1e-6)
    assert [member.verdict.reward for member in group.members] == [1.0] * 3  # what the verifier said


def test_a_branch_is_as_long_as_its_whole_completion() -> None:
    # rewards 1, 0, none, 0.25 for 5, 1, 3 and 5 policy tokens on the path; the last member sampled 1 of its 5
    soft = SoftPenalty(max_tokens=6, buffer_tokens=2)
    credits = GroupAdvantage(overlong=soft).credit(branched_group())
    rewards = {1: 1 - 0.5, 3: 1 - 0.5, 4: 0.0, 6: 0.25 - 0.5}
    mean = (0.5 + 0.0 - 0.25) / 3
    for credit in credits:
        assert credit.advantages is not None
        if credit.segment == 5:
            assert credit.weights.tolist() == [0.0, 0.0]
        else:
            assert credit.advantages.tolist() == pytest.approx(
                [rewards[credit.segment] - mean] * len(credit.weights)
            )


def truncated(group: Group, which: set[int]) -> Group:
    """Returns `group` with the finish reason of some members changed."""
    members = tuple(
        dataclasses.replace(member, finish=FinishReason.LENGTH if index in which else FinishReason.STOP)
        for index, member in enumerate(group.members)
    )
    return dataclasses.replace(group, members=members)


members = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, None]), st.booleans()), min_size=1, max_size=8)


@given(
    members=members,
    baseline=st.sampled_from(["mean", "leave_one_out"]),
    scale=st.sampled_from(["none", "std"]),
)
def test_masked_members_are_as_if_invalid(
    members: list[tuple[float | None, bool]], baseline: str, scale: str
) -> None:
    cut = {index for index, (_, is_cut) in enumerate(members) if is_cut}
    group = truncated(flat_group([verdict(reward) for reward, _ in members]), cut)
    absent = flat_group([verdict(None if is_cut else reward) for reward, is_cut in members])
    masked = GroupAdvantage(baseline=baseline, scale=scale, overlong=MaskTruncated()).credit(group)
    expected = GroupAdvantage(baseline=baseline, scale=scale).credit(absent)
    assert per_member(masked) == per_member(expected)
    assert all(per_member(masked)[index] == (0.0, 0.0) for index in cut)


def test_a_masked_root_leaves_its_branches() -> None:
    group = truncated(branched_group(), {0})
    credits = {c.segment: c for c in GroupAdvantage(overlong=MaskTruncated()).credit(group)}
    advantages = {
        segment: c.advantages.tolist()[0] for segment, c in credits.items() if c.advantages is not None
    }
    assert advantages == {1: 0.0, 3: 0.0, 4: -0.125, 5: 0.0, 6: 0.125}
    assert {segment for segment, c in credits.items() if c.weights.any()} == {4, 6}


@pytest.mark.parametrize("scale", ["none", "std"])
def test_when_all_are_truncated_nothing_trains(scale: str) -> None:
    group = truncated(flat_group([Verdict.scored(1.0), Verdict.scored(0.0)]), {0, 1})
    credits = GroupAdvantage(scale=scale, overlong=MaskTruncated()).credit(group)
    assert per_member(credits) == [(0.0, 0.0)] * 2
    step = pack_step([(group, credits)], max_tokens=64, aggregation="token", max_new_tokens=3)
    assert (step.trained_tokens, step.trained_rollouts, step.denominator, step.trees) == (0, 0, 0.0, ())


def test_without_an_overlong_rule_length_costs_nothing() -> None:
    group = flat_group([Verdict.scored(1.0), Verdict.scored(0.0)], lengths=[2, 500])
    assert per_member(GroupAdvantage().credit(truncated(group, {1}))) == [(0.5, 1.0), (-0.5, 1.0)]
