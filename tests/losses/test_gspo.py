"""GSPO against a plain loop over the paper's formula, autograd through s_i; the token form; what it needs."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.tokens import SEQUENCES, Tokens, batch, policy_loss, value_and_gradient
from turnpoint.losses import sequence_weights

LOW, HIGH = 0.05, 0.08  # hit on both sides by the random ratios below
gspo = policy_loss(objective="gspo", clip_low=LOW, clip_high=HIGH)


def one_advantage_each(n: int, seed: int = 0) -> tuple[Tokens, float]:
    """Returns tokens whose sequences have one advantage and the weight 1 / length, and their denominator."""
    tokens = batch(n, seed=seed)
    ids, mask = tokens["sequence_ids"], tokens["mask"]
    lengths = [int((mask & (ids == sequence)).sum()) for sequence in SEQUENCES]
    factors, denominator = sequence_weights(lengths=lengths, aggregation="sequence", max_tokens=n)
    draws = torch.Generator().manual_seed(seed)
    for sequence, factor in zip(SEQUENCES, factors, strict=True):
        tokens["weights"][ids == sequence] = factor
        tokens["advantages"][ids == sequence] = torch.randn((), generator=draws, dtype=torch.float64)
    return tokens, denominator


def paper(tokens: Tokens) -> tuple[Tensor, float]:
    """Returns - mean_i min(s_i A_i, clip(s_i) A_i), and the share of tokens in clipped sequences."""
    terms: list[Tensor] = []
    clipped = 0
    for sequence in SEQUENCES:
        of = tokens["mask"] & (tokens["sequence_ids"] == sequence)
        if not of.any():
            continue
        ratio = (tokens["logprobs"][of] - tokens["old_logprobs"][of]).mean().exp()
        advantage = tokens["advantages"][of][0]
        bounded = ratio.clamp(1 - LOW, 1 + HIGH)
        terms.append(torch.minimum(ratio * advantage, bounded * advantage))
        clipped += int(of.sum()) * bool(bounded * advantage < ratio * advantage)
    return -torch.stack(terms).mean(), clipped / int(tokens["mask"].sum())


@given(n=st.integers(1, 30), seed=st.integers(0, 500))
def test_is_the_papers_objective_in_value_and_gradient(n: int, seed: int) -> None:
    tokens, denominator = one_advantage_each(n, seed)
    if not tokens["mask"].any():
        return
    loss, clipped = paper(tokens)
    leaf: Tensor = tokens["logprobs"]
    expected = torch.autograd.grad(loss, leaf)[0]
    value, gradient = value_and_gradient(gspo, tokens, denominator)
    torch.testing.assert_close(value, loss.detach())
    torch.testing.assert_close(gradient, expected)
    assert gspo(tokens, denominator)[1]["clip_fraction"].value == pytest.approx(clipped)


def test_the_loop_above_sees_both_sides_of_both_clips() -> None:
    seen: set[tuple[bool, str]] = set()
    for seed in range(20):
        tokens, _ = one_advantage_each(30, seed)
        for sequence, mean in means(tokens).items():
            side = "below" if mean < math.log1p(-LOW) else "above" if mean > math.log1p(HIGH) else "inside"
            advantage = float(tokens["advantages"][tokens["sequence_ids"] == sequence][0])
            seen.add((advantage > 0, side))
    assert len(seen) == 6


def means(tokens: Tokens) -> dict[int, float]:
    """Returns log s_i by sequence id, for sequences with tokens."""
    columns = [tokens[n].tolist() for n in ("sequence_ids", "logprobs", "old_logprobs", "mask")]
    ratios: dict[int, list[float]] = {}
    for sequence, logprob, old, kept in zip(*columns, strict=True):
        if kept:
            ratios.setdefault(sequence, []).append(logprob - old)
    return {sequence: statistics.fmean(some) for sequence, some in ratios.items()}


def test_numerical_gradient() -> None:
    tokens, denominator = one_advantage_each(30, seed=3)

    def loss_of(values: Tensor) -> Tensor:
        return gspo({**tokens, "logprobs": values}, denominator)[0]

    assert torch.autograd.gradcheck(loss_of, tokens["logprobs"])


def test_hand_values() -> None:
    # two sequences, interleaved: ratios 1.21 and 1 make s = 1.1, 0.5 and 2 make s = 1
    loss, metrics = policy_loss(objective="gspo")(
        {
            "logprobs": torch.tensor([1.21, 0.5, 1.0, 2.0], dtype=torch.float64).log(),
            "old_logprobs": torch.zeros(4, dtype=torch.float64),
            "advantages": torch.tensor([2.0, -1.0, 2.0, -1.0], dtype=torch.float64),
            "mask": torch.ones(4, dtype=torch.bool),
            "sequence_ids": torch.tensor([5, -5, 5, -5]),
            "weights": torch.full((4,), 0.5, dtype=torch.float64),
        },
        2.0,
    )
    assert loss.item() == pytest.approx(-(2 * (1 + 4e-4) - 1) / 2)  # the default upper bound
    assert metrics["clip_fraction"].value == 0.5  # the tokens of the first sequence
    assert metrics["ratio_mean"].value == pytest.approx((1.21 + 0.5 + 1 + 2) / 4)  # of tokens


def test_the_default_lower_bound() -> None:
    tokens = batch(1, seed=1)
    tokens |= {"mask": torch.tensor([True]), "advantages": torch.tensor([-1.0], dtype=torch.float64)}
    tokens["logprobs"] = tokens["old_logprobs"] - 1
    loss, _ = policy_loss(objective="gspo")({**tokens, "weights": None}, 1.0)
    assert loss.item() == pytest.approx(1 - 3e-4)


def test_advantages_of_tokens_act_on_their_own_token() -> None:
    tokens = batch(24, seed=2)
    log_s, expected, total = means(tokens), [0.0] * 24, 0.0
    for t in tokens["mask"].nonzero().squeeze(1).tolist():
        s, advantage = math.exp(log_s[int(tokens["sequence_ids"][t])]), float(tokens["advantages"][t])
        kept = min(s, 1 + HIGH) if advantage >= 0 else max(s, 1 - LOW)
        scale = -float(tokens["weights"][t]) * advantage / 7.0
        expected[t] = scale * s if kept == s else 0.0
        total += scale * kept
    assert 0 < expected.count(0.0) < 24
    value, gradient = value_and_gradient(gspo, tokens)
    assert gradient.tolist() == pytest.approx(expected)
    assert value.item() == pytest.approx(total)


def test_a_common_weight_scales_a_sequence() -> None:
    tokens, denominator = one_advantage_each(30, seed=5)
    one = tokens["sequence_ids"] == SEQUENCES[1]
    heavier = {**tokens, "weights": torch.where(one, 3 * tokens["weights"], tokens["weights"])}
    alone = {**tokens, "mask": tokens["mask"] & one}
    difference = gspo(heavier, denominator)[0] - gspo(tokens, denominator)[0]
    torch.testing.assert_close(difference, 2 * gspo(alone, denominator)[0])


def test_a_tiny_drift_of_a_long_sequence_is_measured_in_float32() -> None:
    # half of 32,768 ratios are 1.01, half 1 / 1.01: s = 1, inside a clip of a few 1e-4
    drift = torch.full((2**15,), 0.01)
    drift[1::2] *= -1
    tokens: Tokens = {
        "logprobs": drift,
        "old_logprobs": torch.zeros(2**15),
        "advantages": torch.ones(2**15),
        "mask": torch.ones(2**15, dtype=torch.bool),
        "sequence_ids": torch.zeros(2**15, dtype=torch.int64),
        "weights": torch.full((2**15,), 2.0**-15),
    }
    loss, metrics = policy_loss(objective="gspo")(tokens, 1.0)
    assert loss.item() == pytest.approx(-1.0, abs=1e-6)
    assert metrics["clip_fraction"].value == 0.0


def test_a_bound_ratio_cannot_overflow() -> None:
    tokens, denominator = one_advantage_each(12)
    tokens["advantages"].abs_()
    with torch.no_grad():
        tokens["logprobs"] += 1e5
    value, gradient = value_and_gradient(gspo, tokens, denominator)
    assert math.isfinite(value.item())
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_needs_to_know_the_sequences() -> None:
    with pytest.raises(ValueError, match="gspo has one ratio per sequence and needs sequence_ids"):
        gspo({**batch(3), "sequence_ids": None}, 1.0)
