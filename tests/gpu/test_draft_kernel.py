"""The Triton row pass on a GPU, at full size: `python -m pytest -s tests/gpu tests/drafting/test_triton.py`.

Needs CUDA and triton; skipped without. Numbers are those of torch on the same GPU, also beyond 2^31 logits;
what the fused loss takes beside its inputs and gradient stays under 450 MiB; times are printed, not judged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
    pytest.skip("no CUDA, or Triton only interprets", allow_module_level=True)

from tests.drafting import rows
from turnpoint.drafting import draft_loss, fused_linear_tv
from turnpoint.drafting.kernels.plain import PLAIN_ROWS
from turnpoint.drafting.kernels.rows import RowKernel, RowWeights
from turnpoint.drafting.kernels.triton import TRITON_ROWS
from turnpoint.losses import LinearHead

IDS, WIDTH, TOKENS, DEPTH = 151_936, 2_048, 8_192, 3
DTYPE = torch.bfloat16


def logits(count: int, seed: int) -> torch.Tensor:
    draws = torch.Generator("cuda").manual_seed(seed)
    return torch.empty(count, IDS, dtype=DTYPE, device="cuda").normal_(std=2.0, generator=draws)


def long(count: int) -> rows.Case:
    weights = torch.linspace(0.5, 1.5, count, device="cuda")
    return rows.Case(
        needs=rows.EVERY,
        target_memory=logits(count, 0),
        draft_memory=logits(count, 1),
        token_ids=torch.arange(count, device="cuda"),
        weights=RowWeights(**dict.fromkeys(rows.WEIGHTS, weights)),
        width=IDS,
    )


def last(given: rows.Case, count: int) -> rows.Case:
    weights = {name: getattr(given.weights, name)[-count:] for name in rows.WEIGHTS}
    return replace(
        given,
        target_memory=given.target_memory[-count:],
        draft_memory=given.draft_memory[-count:],
        token_ids=given.token_ids[-count:],
        weights=RowWeights(**weights),
    )


def test_numbers_are_those_of_torch_beyond_2_to_the_31_logits() -> None:
    given = long(2**31 // IDS + 64)
    found, memory = rows.run(TRITON_ROWS, given)
    expected, slopes = rows.run(PLAIN_ROWS, last(given, 64))
    for name in rows.FIGURES:
        torch.testing.assert_close(getattr(found, name)[-64:], getattr(expected, name), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(memory[-64:].float(), slopes.float(), rtol=2**-7, atol=1e-7)


def test_times_of_the_row_pass() -> None:
    given = long(512)
    for name in ("end_to_end_tv", "kl_tv_hybrid", "reverse_kl"):
        part = replace(given, needs=draft_loss(name).needs)
        kernels: dict[str, RowKernel] = {"triton": TRITON_ROWS, "torch": PLAIN_ROWS}
        for kernel, it in kernels.items():
            took = milliseconds(lambda it=it, part=part: rows.run(it, part))
            assert took > 0
            print(json.dumps({"rows": 512, "ids": IDS, "loss": name, "kernel": kernel, "ms": took}))


def milliseconds(work: Callable[[], Any]) -> float:
    """Returns the median of ten runs after three."""
    took = list[float]()
    for _ in range(13):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        took.append(start.elapsed_time(end))
    return sorted(took[3:])[5]


@pytest.mark.parametrize("kernel", [TRITON_ROWS, PLAIN_ROWS], ids=["triton", "torch"])
def test_memory_of_the_fused_loss(kernel: RowKernel) -> None:
    draws = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=DTYPE, device="cuda").normal_(generator=draws)

    places = torch.arange(TOKENS, device="cuda").unsqueeze(1) + torch.arange(DEPTH, device="cuda")
    hidden = normal(DEPTH, TOKENS, WIDTH).requires_grad_()
    given: dict[str, Any] = {
        "head": LinearHead(normal(IDS, WIDTH) * WIDTH**-0.5),
        "target_hidden": normal(TOKENS, WIDTH),
        "draft_hidden": hidden,
        "next_ids": torch.zeros(TOKENS, dtype=torch.long, device="cuda"),
        "mask": places < TOKENS,
        "denominator": float(TOKENS),
        "kernel": kernel,
    }
    torch.autograd.grad(fused_linear_tv(**given).loss, hidden)  # cuBLAS takes its workspace once
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradient = torch.autograd.grad(fused_linear_tv(**given).loss, hidden)[0]
    beyond = torch.cuda.max_memory_allocated() - before - gradient.nbytes
    assert beyond < 450 * 2**20
    took = milliseconds(lambda: torch.autograd.grad(fused_linear_tv(**given).loss, hidden))
    print(json.dumps({"tokens": TOKENS, "beyond_mb": beyond / 2**20, "ms": took}))
