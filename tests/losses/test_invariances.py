"""What holds for every loss here: masking is deleting, order and packing do not matter, parts add up."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.tokens import LOSSES, batch, select, value_and_gradient
from turnpoint.losses import sequence_weights
from turnpoint.metrics import Metrics, merge_metrics, metric_values

FLOATS = ("logprobs", "old_logprobs", "advantages", "weights", "reference_logprobs")
every_loss = pytest.mark.parametrize("name", LOSSES)


# --- masks --------------------------------------------------------------------------------------


@every_loss
def test_masking_is_deleting(name: str) -> None:
    tokens, loss = batch(30), LOSSES[name]
    kept = tokens["mask"].nonzero().squeeze(1)
    value, gradient = value_and_gradient(loss, tokens)
    value_without, gradient_without = value_and_gradient(loss, select(tokens, kept))
    torch.testing.assert_close(value, value_without)
    torch.testing.assert_close(gradient[kept], gradient_without)
    assert torch.equal(gradient[~tokens["mask"]], torch.zeros(30 - len(kept), dtype=torch.float64))


@every_loss
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("streams", [*[[stream] for stream in FLOATS], list(FLOATS)])
def test_masked_positions_cannot_touch_anything(name: str, poison: float, streams: list[str]) -> None:
    tokens, loss = batch(30), LOSSES[name]
    clean = select(tokens, torch.arange(30))
    for stream in streams:
        with torch.no_grad():
            tokens[stream][~tokens["mask"]] = poison
    tokens["sequence_ids"][~tokens["mask"]] = 7  # joins a real sequence
    for ours, theirs in zip(value_and_gradient(loss, tokens), value_and_gradient(loss, clean), strict=True):
        assert torch.equal(ours, theirs)
    assert loss(tokens, 7.0)[1] == loss(clean, 7.0)[1]


@every_loss
def test_everything_masked_is_zero_and_metrics_are_absent(name: str) -> None:
    tokens = batch(5)
    tokens["mask"] = torch.zeros(5, dtype=torch.bool)
    for denominator in (0.0, 3.0):
        value, metrics = LOSSES[name](tokens, denominator)
        value.backward()
        assert value.item() == 0.0
        assert metric_values(metrics) == {}
    assert torch.equal(tokens["logprobs"].grad, torch.zeros(5, dtype=torch.float64))


@every_loss
def test_no_tokens_at_all(name: str) -> None:
    value, metrics = LOSSES[name](batch(0), 2.0)
    assert (value.item(), metric_values(metrics)) == (0.0, {})


@every_loss
def test_an_unmasked_nan_is_not_hidden(name: str) -> None:
    tokens = batch(6)
    tokens["mask"][:] = True
    with torch.no_grad():
        tokens["logprobs"][2] = math.nan
    assert math.isnan(LOSSES[name](tokens, 7.0)[0].item())


# --- order, packing, splitting ------------------------------------------------------------------


@every_loss
@given(order=st.permutations(range(12)))
def test_order_does_not_matter(name: str, order: list[int]) -> None:
    tokens, index = batch(12), torch.tensor(order)
    value, gradient = value_and_gradient(LOSSES[name], tokens)
    permuted_value, permuted_gradient = value_and_gradient(LOSSES[name], select(tokens, index))
    torch.testing.assert_close(value, permuted_value)
    torch.testing.assert_close(gradient[index], permuted_gradient)


@every_loss
def test_shape_does_not_matter(name: str) -> None:
    tokens = batch(12)
    rows = {stream: t.detach().reshape(3, 4) for stream, t in tokens.items()}
    torch.testing.assert_close(LOSSES[name](rows, 3.0)[0], LOSSES[name](tokens, 3.0)[0].detach())


@every_loss
def test_padding_does_not_matter(name: str) -> None:
    tokens, loss = batch(12), LOSSES[name]
    tokens["mask"][:] = True
    padded = select(tokens, torch.arange(12).repeat(2))
    padded["mask"][12:] = False
    value, gradient = value_and_gradient(loss, padded)
    torch.testing.assert_close((value, gradient[:12]), value_and_gradient(loss, tokens))


@every_loss
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("micro_batches", [[8], [4, 4], [1] * 8, [3, 5], [8, 0]])
def test_micro_batches_add_up_to_the_step(name: str, aggregation: str, micro_batches: list[int]) -> None:
    # eight sequences of very different length, one of them without trained tokens
    lengths = [1, 40, 3, 0, 17, 2, 64, 9]
    tokens, loss = batch(sum(lengths), seed=3), LOSSES[name]
    tokens["mask"] = torch.ones(sum(lengths), dtype=torch.bool)
    tokens["sequence_ids"] = torch.arange(8).repeat_interleave(torch.tensor(lengths))
    factors, denominator = sequence_weights(lengths=lengths, aggregation=aggregation, max_tokens=64)
    tokens["weights"] = torch.tensor(factors, dtype=torch.float64)[tokens["sequence_ids"]]
    whole_value, whole_gradient = value_and_gradient(loss, tokens, denominator)
    whole_metrics = loss(tokens, denominator)[1]

    value, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(whole_gradient)
    metrics: list[Metrics] = []
    sequence = token = 0
    for size in micro_batches:
        count = sum(lengths[sequence : sequence + size])
        index = torch.arange(token, token + count)
        sequence, token = sequence + size, token + count
        part = select(tokens, index)
        part_value, part_gradient = value_and_gradient(loss, part, denominator)
        value, gradient = value + part_value, gradient.index_add(0, index, part_gradient)
        metrics.append(loss(part, denominator)[1])
    torch.testing.assert_close(value, whole_value)
    torch.testing.assert_close(gradient, whole_gradient)
    assert metric_values(merge_metrics(metrics)) == pytest.approx(metric_values(whole_metrics))


# --- scale --------------------------------------------------------------------------------------


@every_loss
def test_loss_is_linear_in_weights_and_denominator(name: str) -> None:
    tokens, loss = batch(20), LOSSES[name]
    value, gradient = value_and_gradient(loss, tokens)
    doubled = {**tokens, "weights": 2 * tokens["weights"]}
    torch.testing.assert_close(value_and_gradient(loss, doubled, 14.0), (value, gradient))
    plain = {**tokens, "weights": torch.ones_like(tokens["weights"])}
    torch.testing.assert_close(
        value_and_gradient(loss, {**tokens, "weights": None}), value_and_gradient(loss, plain)
    )


@every_loss
def test_only_logprobs_get_a_gradient(name: str) -> None:
    tokens = batch(9)
    constants = {n: t.detach().clone().requires_grad_() for n, t in tokens.items() if n in FLOATS}
    LOSSES[name]({**tokens, **constants}, 1.0)[0].backward()
    assert constants["logprobs"].grad is not None
    assert all(constants[n].grad is None for n in FLOATS[1:])


@every_loss
@pytest.mark.parametrize("denominator", [-1.0, 0.0, math.nan, math.inf])
def test_refuses_a_denominator_that_counts_nothing(name: str, denominator: float) -> None:
    with pytest.raises(ValueError, match=r"denominator .* trained tokens"):
        LOSSES[name](batch(9), denominator)
