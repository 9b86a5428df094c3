"""Rows of any shape, and that what small ones cost tells what larger ones do."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import ARCHITECTURES, tiny_decoder
from turnpoint.diagnosis.cost import (
    LinearCost,
    _measured,  # pyright: ignore[reportPrivateUsage]
    fit_bytes,
    fit_seconds,
    measure_training,
    optimizer_seconds,
)
from turnpoint.diagnosis.rows import RowSize, Shape, pack_shape, rows_of_step, size_of
from turnpoint.engine.weights import weights_checksum
from turnpoint.training.step import Trainer

CPU = torch.device("cpu")


def test_the_cost_of_what_is_linear_is_found() -> None:
    def of(tokens: int, scores: int) -> tuple[RowSize, float]:
        return RowSize(tokens=tokens, scores=scores), 8 + 2.0 * tokens + 0.5 * scores

    found = fit_seconds(of(50, 500), of(100, 1000), of(100, 9000))
    assert found == LinearCost(fixed=8.0, per_token=2.0, per_score=0.5)
    assert found.of(RowSize(tokens=10, scores=4)) == 30.0


def test_noise_makes_no_cost_negative() -> None:
    def of(tokens: int, scores: int, seconds: float) -> tuple[RowSize, float]:
        return RowSize(tokens=tokens, scores=scores), seconds

    faster = fit_seconds(of(50, 500, 3.0), of(100, 1000, 2.0), of(100, 9000, 1.0))
    assert faster == LinearCost(fixed=0.0, per_token=0.02, per_score=0.0)
    same = of(64, 4096, 6.4)
    assert fit_seconds(same, same, same) == LinearCost(fixed=0.0, per_token=0.1, per_score=0.0)


def test_bytes_need_no_equal_rows() -> None:
    def of(tokens: int, scores: int) -> tuple[RowSize, float]:
        return RowSize(tokens=tokens, scores=scores), 2.0 * tokens + 0.5 * scores

    assert fit_bytes(of(100, 1000), of(120, 9000)) == LinearCost(fixed=0.0, per_token=2.0, per_score=0.5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_bytes_of_a_larger_row_are_foretold(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    for weight in list(decoder.model.parameters())[:4]:
        weight.requires_grad = False  # as the frozen matrices below an adapter: saved, but not anew
    trainer = Trainer(decoder, learning_rate=1e-3, head_chunk_tokens=16)
    before = weights_checksum(trainer.publish())
    cost = measure_training(trainer, decoder, most_tokens=256, context=256, trained=0.5)
    assert trainer.gradients() == {}
    assert weights_checksum(trainer.publish()) == before
    for shape in (
        Shape(prompts=3, samples=4, prompt_tokens=30, new_tokens=40),
        Shape(prompts=1, samples=2, prompt_tokens=20, new_tokens=230),
    ):
        step = pack_shape(shape, max_tokens=10_000, vocab_size=decoder.vocab_size)
        owned = {weight.untyped_storage().data_ptr() for weight in decoder.model.parameters()}
        _, saved = _measured(trainer, step, owned)
        expected = cost.saved_bytes.of(size_of(step.trees[0]))
        assert saved == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("max_tokens", [60, 130, 300, 10_000])
@pytest.mark.parametrize("samples", [1, 3, 8])
def test_the_rows_of_a_step_are_those_it_is_packed_into(max_tokens: int, samples: int) -> None:
    shape = Shape(prompts=6, samples=samples, prompt_tokens=20, new_tokens=35)
    packed = pack_shape(shape, max_tokens=max_tokens, vocab_size=9)
    row, count = rows_of_step(shape, max_tokens=max_tokens)
    sizes = [size_of(tree) for tree in packed.trees]
    # sizes are counted with the last token of every rollout, so packing may fit a little more in
    assert max(size.tokens for size in sizes) <= 1.35 * row.tokens
    assert row.tokens <= max(max_tokens, 55)
    assert count * row.tokens == pytest.approx(packed.packed_tokens, rel=0.35)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(prompts=3, samples=4, prompt_tokens=20, new_tokens=35),  # dense: 156 tokens of a group
        Shape(prompts=3, samples=8, prompt_tokens=20, new_tokens=35),
        Shape(prompts=2, samples=5, prompt_tokens=300, new_tokens=1),
    ],
)
def test_the_size_of_a_row_is_that_of_one_laid_out(shape: Shape) -> None:
    (laid_out,) = pack_shape(shape, max_tokens=10_000, vocab_size=9).trees
    assert rows_of_step(shape, max_tokens=10_000) == (size_of(laid_out), 1.0)


def test_the_size_of_a_huge_row_is_reckoned_and_never_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("turnpoint.diagnosis.rows.pack_shape")
    huge = Shape(prompts=10**6, samples=64, prompt_tokens=20, new_tokens=100)
    row, count = rows_of_step(huge, max_tokens=10**10)
    assert (row.tokens, count) == (10**6 * (20 + 64 * 99), 1.0)


def test_an_update_is_timed_in_proportion() -> None:
    assert optimizer_seconds(1000, CPU) > 0
    assert optimizer_seconds(1 << 24, CPU) > optimizer_seconds(1 << 10, CPU)
