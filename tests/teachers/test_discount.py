"""Returns-to-go of a teacher's signal: hand values, the plain loop, sequences and masks."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.teachers import discounted_signal

SIGNAL = torch.tensor([1.0, 10.0, 2.0, 20.0, 4.0])
IDS = torch.tensor([7, -1, 7, -1, 7])  # two sequences, interleaved


def test_hand_values() -> None:
    half = discounted_signal(SIGNAL, discount=0.5, sequence_ids=IDS)
    assert half.tolist() == [1 + 2 / 2 + 4 / 4, 10 + 20 / 2, 2 + 4 / 2, 20.0, 4.0]
    whole = discounted_signal(SIGNAL, discount=1.0, sequence_ids=IDS)
    assert whole.tolist() == [7.0, 30.0, 6.0, 20.0, 4.0]


def test_zero_is_the_signal() -> None:
    assert torch.equal(discounted_signal(SIGNAL, discount=0.0, sequence_ids=IDS), SIGNAL)


@given(
    lengths=st.lists(st.integers(0, 9), max_size=6),
    seed=st.integers(0, 500),
    discount=st.sampled_from([0.0, 0.3, 0.97, 1.0]),
)
def test_equals_the_loop(lengths: list[int], seed: int, discount: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
    ids = ids[torch.randperm(len(ids), generator=draws)] * 5 - 3
    signal = torch.randn(len(ids), generator=draws, dtype=torch.float64)
    mask = torch.rand(len(ids), generator=draws) > 0.3
    expected, later = [0.0] * len(ids), defaultdict[int, float](float)
    for t in reversed(range(len(ids))):
        if mask[t]:
            own = int(ids[t])
            expected[t] = later[own] = float(signal[t]) + discount * later[own]
    actual = discounted_signal(signal, discount=discount, sequence_ids=ids, mask=mask)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


def test_a_long_sequence() -> None:
    ids = torch.zeros(10_000, dtype=torch.long)
    returns = discounted_signal(torch.ones(10_000), discount=0.99, sequence_ids=ids)
    assert returns[0].item() == pytest.approx((1 - 0.99**10_000) / 0.01, rel=1e-6)
    assert returns[-100].item() == pytest.approx((1 - 0.99**100) / 0.01, rel=1e-6)


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_masked_positions_are_zero_and_touch_nothing(discount: float) -> None:
    mask = torch.tensor([True, True, False, True, True])
    poisoned = torch.where(mask, SIGNAL, math.nan)
    actual = discounted_signal(poisoned, discount=discount, sequence_ids=IDS, mask=mask)
    kept = discounted_signal(SIGNAL[mask], discount=discount, sequence_ids=IDS[mask])
    assert actual[mask].tolist() == kept.tolist()
    assert actual[2] == 0.0


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_is_detached(discount: float) -> None:
    signal = SIGNAL.clone().requires_grad_()
    assert not discounted_signal(signal, discount=discount, sequence_ids=IDS).requires_grad


@pytest.mark.parametrize("discount", [-0.1, 1.01, math.nan])
def test_refuses_what_is_no_discount(discount: float) -> None:
    with pytest.raises(ValueError, match=r"discount = .* must lie in \[0, 1\]"):
        discounted_signal(SIGNAL, discount=discount, sequence_ids=IDS)
