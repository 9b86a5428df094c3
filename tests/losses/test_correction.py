"""Truncated importance weights: a loop, expectations by enumeration, what length does, refusals."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.losses.tokens import SEQUENCES, batch, select
from turnpoint.losses import policy_gradient_loss, truncated_weights
from turnpoint.metrics import Metrics, merge_metrics, metric_values

STREAMS = ("old_logprobs", "behaviour_logprobs")


def draw(n: int, *, seed: int = 0) -> dict[str, Any]:
    tokens = batch(n, seed=seed)
    return {
        "old_logprobs": tokens["old_logprobs"],
        "behaviour_logprobs": tokens["reference_logprobs"],
        "mask": tokens["mask"],
        "sequence_ids": tokens["sequence_ids"],
    }


@given(n=st.integers(0, 20), seed=st.integers(0, 500), cap=st.sampled_from([1.0, 1.2, 2.0]))
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_equals_the_loop(level: str, n: int, seed: int, cap: float) -> None:
    tokens = draw(n, seed=seed)
    logs = (tokens["old_logprobs"] - tokens["behaviour_logprobs"]).tolist()
    mask, ids = tokens["mask"].tolist(), tokens["sequence_ids"].tolist()
    sums = {s: sum(x for x, m, i in zip(logs, mask, ids, strict=True) if m and i == s) for s in set(ids)}
    ratios = [
        math.exp(sums[i] if level == "sequence" else x) for x, m, i in zip(logs, mask, ids, strict=True) if m
    ]
    expected = [min(ratio, cap) for ratio in ratios]
    weights, metrics = truncated_weights(**tokens, cap=cap, level=level)
    assert weights[tokens["mask"]].tolist() == pytest.approx(expected)
    assert torch.equal(weights[~tokens["mask"]], torch.zeros(n - sum(mask), dtype=torch.float64))
    if not expected:
        assert metric_values(metrics) == {}
        return
    count = len(expected)
    assert metric_values(metrics) == pytest.approx(
        {
            "correction_mean": sum(expected) / count,
            "correction_truncated": sum(ratio > cap for ratio in ratios) / count,
            "effective_sample_size": sum(expected) ** 2 / (count * sum(w * w for w in expected)),
        }
    )


def test_equal_laws_need_no_correction() -> None:
    tokens = draw(12)
    tokens["behaviour_logprobs"] = tokens["old_logprobs"]
    for level in ("token", "sequence"):
        weights, metrics = truncated_weights(**tokens, cap=1.0, level=level)
        assert torch.equal(weights, tokens["mask"].double())
        same = {"correction_mean": 1.0, "correction_truncated": 0.0, "effective_sample_size": 1.0}
        assert metric_values(metrics) == pytest.approx(same)


# --- what the weights are for -------------------------------------------------------------------


def laws(seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(3, generator=draws, dtype=torch.float64).log_softmax(0)


def test_corrects_the_expected_gradient_by_enumeration() -> None:
    # each id once, as often as the behaviour draws it; the gradient must be that of drawing from p_old
    logits = laws(0).requires_grad_()
    logprobs, behaviour = logits.log_softmax(0), laws(1)
    advantages, mask = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64), torch.ones(3, dtype=torch.bool)
    old = logprobs.detach()
    truth = torch.autograd.grad(-(logprobs.exp() * advantages).sum(), logits, retain_graph=True)[0]
    weights, _ = truncated_weights(old_logprobs=old, behaviour_logprobs=behaviour, mask=mask, cap=1e6)
    loss, _ = policy_gradient_loss(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=advantages,
        mask=mask,
        denominator=1.0,
        weights=weights * behaviour.exp(),
    )
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], truth)


def test_the_sequence_level_corrects_whole_rollouts_by_enumeration() -> None:
    # all nine rollouts of two tokens, each a sequence: they must count as often as p_old draws them
    old, behaviour = laws(2), laws(3)
    pairs = torch.tensor(list(itertools.product(range(3), repeat=2)))
    weights, _ = truncated_weights(
        old_logprobs=old[pairs],
        behaviour_logprobs=behaviour[pairs],
        mask=torch.ones(9, 2, dtype=torch.bool),
        cap=1e6,
        level="sequence",
        sequence_ids=torch.arange(9).unsqueeze(1).expand(9, 2),
    )
    assert torch.equal(weights[:, 0], weights[:, 1])
    corrected = weights[:, 0] * behaviour[pairs].sum(1).exp()
    torch.testing.assert_close(corrected, old[pairs].sum(1).exp())


def test_noise_that_tokens_survive_ruins_the_ratio_of_long_rollouts() -> None:
    rollouts, length, noise = 64, 500, 0.05
    drift = noise * torch.randn(rollouts, length, generator=torch.Generator().manual_seed(0))

    def shown(level: str, cap: float) -> dict[str, float]:
        _, metrics = truncated_weights(
            old_logprobs=drift,
            behaviour_logprobs=torch.zeros(rollouts, length),
            mask=torch.ones(rollouts, length, dtype=torch.bool),
            cap=cap,
            level=level,
            sequence_ids=torch.arange(rollouts).unsqueeze(1).expand(rollouts, length),
        )
        return metric_values(metrics)

    # log of a product: standard deviation 0.05 sqrt(500) = 1.1, and exp(-1.1^2) = 0.29
    assert shown("token", 2.0)["effective_sample_size"] > 0.99
    assert shown("token", 2.0)["correction_truncated"] == 0.0
    assert shown("sequence", 1e6)["effective_sample_size"] < 0.5
    assert 0.1 < shown("sequence", 2.0)["correction_truncated"] < 0.4
    assert shown("sequence", 2.0)["effective_sample_size"] > shown("sequence", 1e6)["effective_sample_size"]


# --- masks, parts, extremes ---------------------------------------------------------------------


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_positions_cannot_touch_anything(level: str, poison: float) -> None:
    tokens = draw(30)
    clean = {name: tensor.clone() for name, tensor in tokens.items()}
    for stream in STREAMS:
        tokens[stream][~tokens["mask"]] = poison
    tokens["sequence_ids"][~tokens["mask"]] = 7
    ours, theirs = (truncated_weights(**some, level=level) for some in (tokens, clean))
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_parts_that_hold_whole_sequences_add_up(level: str) -> None:
    tokens = draw(40)
    whole, whole_metrics = truncated_weights(**tokens, level=level)
    metrics: list[Metrics] = []
    for some in (SEQUENCES[:1], SEQUENCES[1:]):
        index = torch.isin(tokens["sequence_ids"], some).nonzero().squeeze(1)
        part, part_metrics = truncated_weights(**select(tokens, index), level=level)
        torch.testing.assert_close(part, whole[index])
        metrics.append(part_metrics)
    assert metric_values(merge_metrics(metrics)) == pytest.approx(metric_values(whole_metrics))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_extremes_are_the_cap_and_zero(level: str) -> None:
    weights, metrics = truncated_weights(
        old_logprobs=torch.tensor([0.0, -1e4, -1.0]),
        behaviour_logprobs=torch.tensor([-1e4, 0.0, -1.0]),
        mask=torch.ones(3, dtype=torch.bool),
        level=level,
        sequence_ids=torch.arange(3),
    )
    assert weights.tolist() == [2.0, 0.0, 1.0]
    assert metrics["effective_sample_size"].value == pytest.approx(9 / (3 * 5))


def test_weights_are_constants_for_autograd() -> None:
    tokens = draw(6)
    for stream in STREAMS:
        tokens[stream].requires_grad_()
    for level in ("token", "sequence"):
        assert not truncated_weights(**tokens, level=level)[0].requires_grad


# --- refusals -----------------------------------------------------------------------------------


def test_refuses_what_means_nothing() -> None:
    tokens = draw(3)
    with pytest.raises(ValueError, match="unknown level 'rollout'; known: token, sequence"):
        truncated_weights(**tokens, level="rollout")
    for cap in (0.0, 0.5, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="must be finite and at least 1"):
            truncated_weights(**tokens, cap=cap)
    del tokens["sequence_ids"]
    with pytest.raises(ValueError, match="needs sequence_ids"):
        truncated_weights(**tokens, level="sequence")
