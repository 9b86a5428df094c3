"""Laws of credit: what must hold for every group, whatever its rewards."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.records import TASK, append_policy, flat_group, member, rewards, verdict
from turnpoint.credit import GroupAdvantage, group_advantages
from turnpoint.types import Author, Group, SegmentCredit, TreeBuilder, Verdict

groups = st.lists(rewards, min_size=1, max_size=8)
baselines = st.sampled_from(["mean", "leave_one_out"])
scales = st.sampled_from(["none", "std"])


def advantages(values: list[float | None], baseline: str = "mean", scale: str = "none") -> list[float]:
    """Returns the advantages of members with these rewards; None is an invalid member."""
    numbers = [math.nan if value is None else value for value in values]
    result = group_advantages(
        torch.tensor(numbers, dtype=torch.float64),
        baseline=baseline,
        scale=scale,
        valid=torch.tensor([value is not None for value in values], dtype=torch.bool),
    )
    return [float(advantage) for advantage in result]


def near(values: list[float], scale: float = 1.0) -> object:
    return pytest.approx(values, rel=1e-6, abs=1e-6 * scale)


@given(values=groups, baseline=baselines, scale=scales)
def test_valid_advantages_sum_to_zero(values: list[float | None], baseline: str, scale: str) -> None:
    assert sum(advantages(values, baseline, scale)) == pytest.approx(0.0, abs=1e-6 * 1e6)


@given(values=groups, baseline=baselines, scale=scales)
def test_invalid_members_are_as_if_absent(values: list[float | None], baseline: str, scale: str) -> None:
    kept = [value for value in values if value is not None]
    with_them = advantages(values, baseline, scale)
    assert [a for a, v in zip(with_them, values, strict=True) if v is not None] == advantages(
        list(kept), baseline, scale
    )
    assert all(a == 0.0 for a, v in zip(with_them, values, strict=True) if v is None)


@given(values=groups, baseline=baselines, scale=scales, seed=st.integers(0, 99))
def test_order_of_members_does_not_matter(
    values: list[float | None], baseline: str, scale: str, seed: int
) -> None:
    order = random.Random(seed).sample(range(len(values)), len(values))
    permuted = advantages([values[i] for i in order], baseline, scale)
    assert permuted == near([advantages(values, baseline, scale)[i] for i in order], 1e6)


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=8), shift=st.floats(-100, 100))
def test_a_common_shift_does_not_matter(values: list[float], shift: float) -> None:
    for baseline in ("mean", "leave_one_out"):
        shifted = advantages([value + shift for value in values], baseline)
        assert shifted == near(advantages(list(values), baseline), 100)


@given(
    values=st.lists(st.floats(-100, 100), min_size=2, max_size=8),
    factor=st.floats(0.1, 10),
    baseline=baselines,
)
def test_scaling_rewards_scales_advantages_without_std_only(
    values: list[float], factor: float, baseline: str
) -> None:
    scaled: list[float | None] = [factor * value for value in values]
    assert advantages(scaled, baseline) == near([factor * a for a in advantages(list(values), baseline)], 1e3)
    spread = torch.tensor(values, dtype=torch.float64).std(correction=0).item()
    assume(spread > 0.1)
    ours, theirs = advantages(scaled, baseline, "std"), advantages(list(values), baseline, "std")
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3)


@given(values=groups)
def test_leave_one_out_is_the_mean_baseline_times_n_over_n_minus_1(values: list[float | None]) -> None:
    n = sum(value is not None for value in values)
    assume(n > 1)
    expected = [a * n / (n - 1) for a in advantages(values)]
    assert advantages(values, "leave_one_out") == near(expected, 1e6)


@given(reward=st.floats(-1e300, 1e300), n=st.integers(1, 9), invalid=st.integers(0, 3))
def test_a_group_without_contrast_teaches_exactly_nothing(reward: float, n: int, invalid: int) -> None:
    for baseline in ("mean", "leave_one_out"):
        for scale in ("none", "std"):
            values = [*[reward] * n, *[None] * invalid]
            assert advantages(values, baseline, scale) == [0.0] * (n + invalid)


@given(values=groups, baseline=baselines, scale=scales)
def test_advantages_are_finite_and_ordered_like_the_rewards(
    values: list[float | None], baseline: str, scale: str
) -> None:
    result = advantages(values, baseline, scale)
    assert all(math.isfinite(a) for a in result)
    pairs = sorted((v, a) for v, a in zip(values, result, strict=True) if v is not None)
    assert all(low <= high + 1e-9 for (_, low), (_, high) in itertools.pairwise(pairs))


# --- on groups ----------------------------------------------------------------------------------


def values_of(credit: SegmentCredit) -> list[float]:
    assert credit.advantages is not None
    return credit.advantages.tolist()


@given(values=groups, baseline=baselines, scale=scales)
def test_a_tree_without_forks_is_credited_like_a_flat_group(
    values: list[float | None], baseline: str, scale: str
) -> None:
    group = flat_group([verdict(value) for value in values])
    credits = GroupAdvantage(baseline=baseline, scale=scale).credit(group)
    expected = advantages(values, baseline, scale)
    for index, (credit, value) in enumerate(zip(credits, values, strict=True)):
        n = group.num_generated(index)
        assert credit.segment == group.members[index].leaf
        assert values_of(credit) == near([expected[index]] * n, 1e6)
        assert credit.weights.tolist() == [0.0 if value is None else 1.0] * n


def test_groups_are_compared_with_themselves_only() -> None:
    low = flat_group([Verdict.scored(0.0), Verdict.scored(1.0)])
    high = flat_group([Verdict.scored(10.0), Verdict.scored(11.0)])
    rule = GroupAdvantage(scale="std")
    assert [values_of(c) for c in rule.credit(low)] == [values_of(c) for c in rule.credit(high)]


@given(forks=st.integers(1, 6))
def test_a_shared_prefix_is_credited_once_however_many_share_it(forks: int) -> None:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5])
    root = append_policy(tree, parent=prompt, token_ids=[1, 2, 3])
    members = [member(root, (root,), Verdict.scored(1.0))]
    for _ in range(forks):
        leaf = append_policy(tree, parent=root, parent_length=1, token_ids=[4])
        members.append(member(leaf, (leaf,), Verdict.scored(0.0)))
    group = Group(id="0/0", task=TASK, tree=tree.freeze(), members=tuple(members))
    credits = GroupAdvantage().credit(group)
    assert [credit.segment for credit in credits] == list(range(1, forks + 2))
    assert sum(len(credit.weights) for credit in credits) == 3 + forks
    assert values_of(credits[0]) == pytest.approx([forks / (forks + 1)] * 3)
