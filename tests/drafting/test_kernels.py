"""The row pass in torch is what its definition says, and which one runs where."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.drafting import rows
from turnpoint.drafting import draft_loss
from turnpoint.drafting.fused import default_chunk
from turnpoint.drafting.kernels.choice import row_kernel
from turnpoint.drafting.kernels.plain import PLAIN_ROWS
from turnpoint.drafting.losses import DraftLossName
from turnpoint.errors import UserError
from turnpoint.losses import LinearHead

ROUNDING = [(torch.float32, 1e-4), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)]


@pytest.mark.parametrize("width", [1, 17])
@pytest.mark.parametrize(("dtype", "rounding"), ROUNDING)
def test_figures_and_slopes(width: int, dtype: torch.dtype, rounding: float) -> None:
    rows.check(PLAIN_ROWS, rows.case(width, dtype=dtype), rounding=rounding)


def test_wide_rows_go_a_few_at_a_time() -> None:
    """Five rows of a quarter MiB: nothing that lies beside the logits is as large as they are."""
    width = (1 << 18) + 1
    given = rows.case(width)
    rows.check(PLAIN_ROWS, given)
    with Sizes() as sizes:
        rows.run(PLAIN_ROWS, given)
    largest = sorted(sizes.made)[-2:]  # the last is the copy that `run` makes
    assert largest == [3 * width, given.draft_memory.numel()]


class Sizes(TorchDispatchMode):
    """Collects the sizes of tensors that operations make: no views, none that they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.made = list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named: dict[str, Any] = kwargs or {}
        found = func(*args, **named)
        given = any(found is it for it in (*args, *named.values()))
        if isinstance(found, torch.Tensor) and not (given or func.is_view):
            self.made.append(found.numel())
        return found


@pytest.mark.parametrize("loss", ["cross_entropy", "forward_kl", "reverse_kl", "tv", "kl_tv_hybrid"])
def test_what_a_loss_does_not_need_is_left_out(loss: DraftLossName) -> None:
    rows.check(PLAIN_ROWS, rows.case(17, needs=draft_loss(loss).needs))


def test_no_rows_give_nothing() -> None:
    given = rows.case(17)
    none = replace(
        given,
        target_memory=given.target_memory[:0],
        draft_memory=given.draft_memory[:0],
        token_ids=given.token_ids[:0],
        weights=type(given.weights)(**{name: getattr(given.weights, name)[:0] for name in rows.WEIGHTS}),
    )
    figures, memory = rows.run(PLAIN_ROWS, none)
    assert figures.alphas.shape == (0,)
    assert memory.shape == (0, 20)


def test_a_row_of_nothing_that_learns_nothing_gets_zeros() -> None:
    given = rows.case(17)
    given.draft[rows.IDLE] = torch.nan
    figures, memory = rows.run(PLAIN_ROWS, given)
    others = torch.arange(rows.ROWS) != rows.IDLE
    assert bool(memory[rows.IDLE, :17].eq(0).all())
    assert bool(memory[others].isfinite().all())
    assert bool(figures.alphas[others].isfinite().all())


def test_a_chunk_is_what_fits() -> None:
    head = LinearHead(torch.empty(151_936, 2_048, dtype=torch.bfloat16, device="meta"))
    assert default_chunk(3, head) == 2**28 // (151_936 * 2 * 5)
    assert default_chunk(3, LinearHead(torch.empty(2**27, 1, device="meta"))) == 1


def test_cpus_take_torch_and_so_does_cuda_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert row_kernel(torch.device("cpu")) is PLAIN_ROWS
    monkeypatch.setitem(sys.modules, "triton", None)
    assert row_kernel(torch.device("cuda")) is PLAIN_ROWS


def test_without_triton_its_kernel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "turnpoint.drafting.kernels.triton", raising=False)
    with pytest.raises(UserError, match=r"needs triton: pip install 'turnpoint\[triton\]'"):
        importlib.import_module("turnpoint.drafting.kernels.triton")
