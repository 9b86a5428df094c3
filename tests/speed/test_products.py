"""Matrix products of a model, counted by hand, and the ceilings that follow from them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_decoder
from turnpoint.speed.ceilings import MeasuredProducts, measure_bandwidth
from turnpoint.speed.context import LayerContext, context_bytes, layers_of
from turnpoint.speed.products import (
    MOST_ROWS,
    Kind,
    Matrices,
    Pass,
    arithmetic_seconds,
    passes_of,
    products_of,
    weight_bytes,
)

# of tests/tiny.py: 2 layers; q 32 x 32, k and v 16 x 32, o 32 x 32, gate and up 64 x 32, down 32 x 64
LAYER_WEIGHTS = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 64 * 32)


def one_gigaflop(weight: Tensor, rows: int, kind: Kind) -> float:
    """A machine of 1 GFLOP/s."""
    return 2 * rows * weight.numel() / 1e9


def experts(count: int, per_row: int) -> Matrices:
    return Matrices(weight=torch.zeros(2, 3), count=count, per_row=per_row, trained=True)


def test_the_matrices_of_a_llama() -> None:
    decoder = tiny_decoder()
    products = products_of(decoder)
    head = decoder.vocab_size * 32
    assert sorted((*it.weight.shape, it.count) for it in products.layers) == [
        (16, 32, 4),
        (32, 32, 4),
        (32, 64, 2),
        (64, 32, 4),
    ]
    assert sum(it.flops(5) for it in products.layers) == 5 * 2 * LAYER_WEIGHTS
    assert [it.bytes(5) for it in products.head] == [4 * head]
    step = [Pass(matrices=products.layers, rows=1, times=1), Pass(matrices=products.head, rows=1, times=1)]
    assert weight_bytes(step) == 4 * (LAYER_WEIGHTS + head)
    assert arithmetic_seconds(step, one_gigaflop) == pytest.approx(2 * (LAYER_WEIGHTS + head) / 1e9)


def test_the_matrices_of_gpt2_which_keeps_them_transposed() -> None:
    products = products_of(tiny_decoder("gpt2"))
    assert sorted((*it.weight.shape, it.count) for it in products.layers) == [
        (32, 32, 2),
        (32, 128, 2),
        (96, 32, 2),
        (128, 32, 2),
    ]


@pytest.mark.parametrize(
    ("rows", "met", "each"),
    [(1, 2, 1), (3, 6, 1), (4, 8, 1), (8, 8, 2), (9, 8, 3)],
)
def test_few_rows_meet_few_experts(rows: int, met: int, each: int) -> None:
    """8 experts, 2 for each row: one row reads 2 of them, many rows all 8."""
    layer = experts(8, 2)
    assert layer.met(rows) == (met, each)
    assert layer.bytes(rows) == met * 6 * 4
    assert layer.flops(rows) == 2 * rows * 2 * 6


def test_backward_and_recomputation_cost_products() -> None:
    frozen = Matrices(weight=torch.zeros(2, 3), count=1, per_row=1, trained=False)
    for matrices, extra, products in (
        (experts(1, 1), {}, 1),
        (experts(1, 1), {"backward": True}, 3),
        (experts(1, 1), {"backward": True, "recomputed": True}, 4),
        (frozen, {"backward": True}, 2),
    ):
        some = [Pass(matrices=[matrices], rows=10, times=2, **extra)]
        assert arithmetic_seconds(some, one_gigaflop) == pytest.approx(2 * products * 2 * 10 * 6 / 1e9)


def test_rows_pass_so_many_at_once() -> None:
    layer = [experts(1, 1)]
    assert passes_of(layer, 0, at_once=4) == []
    (some,) = passes_of(layer, 10, at_once=4)
    assert (some.rows, some.times) == (4, 2.5)
    (few,) = passes_of(layer, 3, at_once=4)
    assert (few.rows, few.times) == (3, 1)
    (many,) = passes_of(layer, 8 * MOST_ROWS, at_once=4 * MOST_ROWS)
    assert (many.rows, many.times) == (MOST_ROWS, 8)


def test_the_context_of_a_step() -> None:
    """Two layers, 2 heads of keys and values of 8 floats are 128 bytes a token; gemma's window is 8."""
    full, sliding = layers_of(tiny_decoder()), layers_of(tiny_decoder("gemma"))
    assert full == [LayerContext(token_bytes=128, window=None)] * 2
    assert [layer.window for layer in sliding] == [8, None]
    sizes = {"prompts": 2, "prompt_tokens": 20, "sequences": 6}
    assert context_bytes(full, **sizes, suffix=10) == 2 * 128 * (2 * 20 + 6 * 10)
    # the suffix fills the window, so that nothing of the prompt is seen there
    assert context_bytes(sliding, **sizes, suffix=10) == 128 * (6 * 8 + 2 * 20 + 6 * 10)
    assert context_bytes(sliding, **sizes, suffix=5) == 128 * (6 * 5 + 2 * 3 + 2 * 20 + 6 * 5)


def test_ceilings_are_measured_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, weight = MeasuredProducts(), torch.ones(4, 6)
    kinds: list[Kind] = ["forward", "to_input", "to_weight"]
    first = [clock(weight, 3, kind) for kind in kinds]
    assert min(first) > 0
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    assert [clock(torch.zeros(4, 6), 3, kind) for kind in kinds] == first


def test_bandwidth_is_the_faster_of_reading_and_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that moves a second a look, 1 MiB read and 1 MiB copied (half twice) take 1 s each."""
    ticks = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    assert measure_bandwidth(torch.device("cpu"), None, array=1 << 20) == 1 << 20
