"""Aggregation: one factor per sequence and one denominator per step."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.losses import policy_gradient_loss, sequence_weights


def test_hand_values() -> None:
    lengths = [2, 0, 4]
    assert sequence_weights(lengths=lengths, aggregation="token", max_tokens=8) == ([1.0] * 3, 6.0)
    assert sequence_weights(lengths=lengths, aggregation="sequence", max_tokens=8) == ([0.5, 0.0, 0.25], 2.0)
    assert sequence_weights(lengths=lengths, aggregation="constant", max_tokens=8) == ([1.0] * 3, 24.0)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_nothing_to_average(aggregation: str) -> None:
    assert sequence_weights(lengths=[], aggregation=aggregation, max_tokens=8) == ([], 0.0)


def test_refuses_unknown_aggregation() -> None:
    with pytest.raises(ValueError, match="unknown aggregation 'mean'; known: token, sequence, constant"):
        sequence_weights(lengths=[1], aggregation="mean", max_tokens=8)


@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_total_weight_of_tokens_and_sequences(lengths: list[int]) -> None:
    # what all tokens of each sequence weigh together
    def shares(aggregation: str) -> list[float]:
        factors, denominator = sequence_weights(lengths=lengths, aggregation=aggregation, max_tokens=20)
        return [f * n / denominator for f, n in zip(factors, lengths, strict=True)]

    if sum(lengths):
        assert math.isclose(sum(shares("token")), 1.0)
        assert all(
            s == pytest.approx(1 / sum(n > 0 for n in lengths) if n else 0.0)
            for s, n in zip(shares("sequence"), lengths, strict=True)
        )
    assert shares("constant") == pytest.approx([n / (20 * len(lengths)) for n in lengths])


def token_gradients(lengths: list[int], aggregation: str) -> list[torch.Tensor]:
    """Returns the gradient of each token's log-probability, per sequence, at advantage -1."""
    factors, denominator = sequence_weights(lengths=lengths, aggregation=aggregation, max_tokens=32)
    logprobs = torch.full((sum(lengths),), -1.0, dtype=torch.float64, requires_grad=True)
    loss, _ = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=logprobs,
        advantages=torch.full_like(logprobs, -1.0),
        mask=torch.ones_like(logprobs, dtype=torch.bool),
        denominator=denominator,
        weights=torch.tensor(factors, dtype=torch.float64).repeat_interleave(torch.tensor(lengths)),
    )
    gradient = torch.autograd.grad(loss, logprobs)[0]
    ends = list(itertools.accumulate(lengths))
    return [gradient[end - n : end] for end, n in zip(ends, lengths, strict=True)]


def test_length_bias_exists_only_under_sequence_means() -> None:
    for aggregation, ratio in [("constant", 1.0), ("token", 1.0), ("sequence", 10.0)]:
        short, long = token_gradients([2, 20], aggregation)
        assert torch.allclose(short, short[0]), aggregation
        torch.testing.assert_close(short[0], ratio * long[0], msg=aggregation)


def test_constant_gradient_of_a_token_does_not_depend_on_other_lengths() -> None:
    torch.testing.assert_close(
        token_gradients([2, 20], "constant")[0], token_gradients([2, 3], "constant")[0]
    )
