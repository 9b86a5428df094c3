"""The row pass in Triton is what its definition says: `make test-triton`, on CPUs by Triton's interpreter.

The interpreter proves arithmetic. That the kernels compile for GPUs is seen without one; what they do there
is not (`tests/gpu`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: make test-triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("neither CUDA nor TRITON_INTERPRET=1: make test-triton", allow_module_level=True)

from tests.drafting import rows  # noqa: E402
from tests.drafting.test_fused import NAMES, inputs, plain, slope  # noqa: E402
from turnpoint.drafting import draft_loss, fused_linear_tv  # noqa: E402
from turnpoint.drafting.kernels.choice import row_kernel  # noqa: E402
from turnpoint.drafting.kernels.triton import TRITON_ROWS  # noqa: E402
from turnpoint.drafting.losses import DraftLossName  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
# one step of the output's own numbers: Triton's interpreter cuts bfloat16 off where a GPU rounds
ROUNDING = [(torch.float32, 1e-4), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)]
TILES = [1, 17, 4096, 9001]  # less than a tile, a whole one, several with a rest

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, behind the interpreter


@pytest.mark.parametrize("width", TILES)
@pytest.mark.parametrize(("dtype", "rounding"), ROUNDING)
def test_figures_and_slopes(width: int, dtype: torch.dtype, rounding: float) -> None:
    rows.check(TRITON_ROWS, rows.case(width, dtype=dtype, device=DEVICE), rounding=rounding)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_loss_does_not_need_is_left_out(name: DraftLossName) -> None:
    rows.check(TRITON_ROWS, rows.case(17, needs=draft_loss(name).needs, device=DEVICE))


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_huge_logits_neither_overflow_nor_vanish(shift: float) -> None:
    """A normaliser of 1e4 has steps of 1e-3 nats in float32, here as in torch."""
    given = rows.case(9001, shift=shift, device=DEVICE)
    expected, slopes = rows.right(given)
    figures, memory = rows.run(TRITON_ROWS, given)
    torch.testing.assert_close(figures.normaliser.double().cpu(), expected["normaliser"], rtol=1e-7, atol=0)
    torch.testing.assert_close(figures.alphas.double().cpu(), expected["alphas"], rtol=2e-3, atol=0)
    torch.testing.assert_close(memory[:, :9001].double().cpu(), slopes, rtol=2e-2, atol=1e-3)


def test_a_normaliser_of_tiles_without_mass() -> None:
    logits = torch.full((3, 9001), -torch.inf, device=DEVICE)
    logits[0, 8999], logits[1, 3] = 5.0, -2.0
    assert TRITON_ROWS.normaliser(logits).tolist() == [5.0, -2.0, -torch.inf]


@pytest.mark.parametrize("side", ["target", "draft"])
def test_nan_stays_in_its_row_and_shows_in_every_figure(side: str) -> None:
    given = rows.case(5000, device=DEVICE)
    getattr(given, side)[[0, rows.IDLE], 4500] = torch.nan
    figures, memory = rows.run(TRITON_ROWS, given)
    clean, slopes = rows.run(TRITON_ROWS, rows.case(5000, device=DEVICE))
    for name in ("alphas", "forward_kl", "reverse_kl"):
        found: Any = getattr(figures, name)
        assert found.isnan().tolist() == [True, False, False, True, False]
        assert torch.equal(found[[1, 2, 4]], getattr(clean, name)[[1, 2, 4]])
    assert torch.equal(memory[1:], slopes[1:])  # with zeros in the row that learns nothing
    assert bool(memory[0, :5000].isnan().any())


def test_logits_that_do_not_lie_side_by_side_are_refused() -> None:
    with pytest.raises(ValueError, match="side by side"):
        TRITON_ROWS.normaliser(torch.zeros(9, 4, device=DEVICE).T)


@pytest.mark.parametrize("name", NAMES)
def test_the_fused_loss_takes_it(name: DraftLossName) -> None:
    given = inputs(device=DEVICE)
    expected, alphas = plain(given, name, temperature=0.7)
    found = fused_linear_tv(**given, loss=name, temperature=0.7, chunk=4, kernel=TRITON_ROWS)
    torch.testing.assert_close(found.loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.alphas.double(), alphas, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slope(found.loss, given), slope(expected, given), rtol=1e-4, atol=1e-6)


def test_cuda_takes_it() -> None:
    assert row_kernel(torch.device("cuda")) is TRITON_ROWS


@pytest.mark.slow
def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """In a process without the interpreter; needs no GPU."""
    there = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.drafting.compiled", "90"]
    answer = subprocess.run(command, env={**there, **paths}, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert len(answer.stdout.splitlines()) == 3 * 3
