"""Sums per sequence: against a loop, for any ids in any order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.losses.sequences import sequence_sums

tokens = st.lists(
    st.tuples(st.floats(-10, 10), st.booleans(), st.sampled_from([0, 1, -1, 5, -(2**40), 2**62])), max_size=12
)


@given(tokens=tokens)
def test_equals_the_loop(tokens: list[tuple[float, bool, int]]) -> None:
    expected = [
        sum(value for value, kept, other in tokens if kept and other == own) if mine else 0.0
        for _, mine, own in tokens
    ]
    got = sequence_sums(
        torch.tensor([value for value, _, _ in tokens], dtype=torch.float32).requires_grad_(),
        mask=torch.tensor([kept for _, kept, _ in tokens], dtype=torch.bool),
        sequence_ids=torch.tensor([own for _, _, own in tokens], dtype=torch.int64),
    )
    assert got.dtype == torch.float64
    assert not got.requires_grad
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-4, rtol=1e-5)
