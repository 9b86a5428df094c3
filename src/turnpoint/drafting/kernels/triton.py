"""The row pass in Triton, for GPUs: logits are read twice or thrice, written once, and nothing lies beside.

One program per row walks over the vocabulary in tiles. Sums are kept per lane of the tile, in float32, and
added up at its end; the normaliser is a running maximum and a running sum of exponentials (online softmax).
What lies behind the vocabulary reads as -inf: no mass on either side. NaN spreads to the figures of its row
and no further. Numbers are those of `turnpoint.drafting.kernels.plain`; under `TRITON_INTERPRET=1`, set
before Triton is imported, the kernels run on CPUs, slowly, to be tested.

Importing this module imports triton, and raises UserError when it is not installed.
"""

# ruff: noqa: ANN001, ANN202 (kernels are typed by Triton)

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, no_type_check

import torch
from torch import Tensor

from turnpoint.drafting.kernels.rows import RowFigures, RowKernel, RowWeights
from turnpoint.drafting.losses import Statistic
from turnpoint.errors import UserError
from turnpoint.losses.laws import LOWEST_LOGPROB


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"the Triton row kernel needs {name}: pip install 'turnpoint[triton]'") from error


# Triton is untyped: it is crossed here, and by the kernels below.
triton: Any = _imported("triton")
tl: Any = _imported("triton.language")

_TILE = 4096  # logits at a time
_LAUNCH = {"num_warps": 8, "enable_fp_fusion": True}  # what Triton does unless told; from 3.10 it does not
_FLOOR = tl.constexpr(LOWEST_LOGPROB)
_MINUS_INF = tl.constexpr(float("-inf"))
_SPREAD = tl.constexpr(tl.PropagateNan.ALL)


def normaliser_of(logits: Tensor) -> Tensor:
    """Returns log sum exp of each row, [n]."""
    found = logits.new_empty(len(logits), dtype=torch.float32)
    with torch.cuda.device_of(logits):
        _normalise[(len(logits),)](logits, found, **_layout(logits=logits))
    return found


def measure(
    *,
    target_logits: Tensor,
    target_normaliser: Tensor,
    draft_logits: Tensor,
    needs: frozenset[Statistic],
) -> RowFigures:
    """Returns the figures of rows."""
    normaliser = normaliser_of(draft_logits)
    figures = normaliser.new_zeros(4, len(draft_logits))
    with torch.cuda.device_of(draft_logits):
        _measure[(len(draft_logits),)](
            target_logits,
            draft_logits,
            torch.stack([target_normaliser, normaliser]),
            figures,
            rows=len(draft_logits),
            FORWARD="forward_kl" in needs,
            REVERSE="reverse_kl" in needs,
            **_layout(target=target_logits, draft=draft_logits),
        )
    alphas, below, forward, reverse = figures
    return RowFigures(
        normaliser=normaliser, alphas=alphas, below=below, forward_kl=forward, reverse_kl=reverse
    )


def slope_(
    *,
    target_logits: Tensor,
    target_normaliser: Tensor,
    draft_logits: Tensor,
    token_ids: Tensor,
    figures: RowFigures,
    weights: RowWeights,
    needs: frozenset[Statistic],
) -> None:
    """Writes the derivative of the loss by the draft's logits in their place."""
    numbers = torch.stack(
        [
            target_normaliser,
            figures.normaliser,
            weights.alphas,
            weights.alphas * figures.below + weights.draft_logprobs - weights.forward_kl,
            weights.draft_logprobs,
            weights.forward_kl,
            weights.reverse_kl,
            figures.reverse_kl,
        ]
    )
    with torch.cuda.device_of(draft_logits):
        _slope[(len(draft_logits),)](
            target_logits,
            draft_logits,
            numbers,
            token_ids.contiguous(),
            rows=len(draft_logits),
            FORWARD="forward_kl" in needs,
            REVERSE="reverse_kl" in needs,
            **_layout(target=target_logits, draft=draft_logits),
        )


def _layout(**logits: Tensor) -> dict[str, Any]:
    """Returns how kernels walk over rows of `logits`, which are all over one vocabulary."""
    width = next(iter(logits.values())).shape[1]
    if any(width > 1 and it.stride(1) != 1 for it in logits.values()):
        raise ValueError("logits of a row must lie side by side: call .contiguous() on them")
    strides = {f"{name}_stride": it.stride(0) for name, it in logits.items()}
    tile = min(_TILE, triton.next_power_of_2(width))
    return {**strides, "vocabulary": width, "TILE": tile, **_LAUNCH}


@triton.jit
@no_type_check
def _law(logits, normaliser):
    return tl.exp(logits - normaliser)


@triton.jit
@no_type_check
def _gap(target, target_normaliser, draft, normaliser):
    log_q = tl.maximum(draft - normaliser, _FLOOR, propagate_nan=_SPREAD)
    return log_q - tl.maximum(target - target_normaliser, _FLOOR, propagate_nan=_SPREAD)


@triton.jit
@no_type_check
def _finite(highest):
    """What to subtract before exp: no maximum of nothing, since -inf - -inf is no number."""
    return tl.where(highest == _MINUS_INF, 0.0, highest)


@triton.jit
@no_type_check
def _normalise(logits, found, logits_stride, vocabulary, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, TILE)
    highest = tl.full([TILE], _MINUS_INF, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, vocabulary, TILE):
        ids = start + lanes
        x = tl.load(logits + row * logits_stride + ids, mask=ids < vocabulary, other=_MINUS_INF).to(
            tl.float32
        )
        higher = tl.maximum(highest, x)
        shift = _finite(higher)
        total = total * tl.exp(highest - shift) + tl.exp(x - shift)
        highest = higher
    shift = _finite(tl.max(highest, 0))
    tl.store(found + row, tl.log(tl.sum(total * tl.exp(highest - shift), 0)) + shift)


@triton.jit
@no_type_check
def _measure(
    target,
    draft,
    normalisers,  # [2, rows]: of target and draft
    figures,  # [4, rows]: alphas, below, forward and reverse KL
    target_stride,
    draft_stride,
    rows,
    vocabulary,
    FORWARD: tl.constexpr,
    REVERSE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    of_target = tl.load(normalisers + row)
    of_draft = tl.load(normalisers + rows + row)
    lanes = tl.arange(0, TILE)
    alphas = tl.zeros([TILE], tl.float32)
    below = tl.zeros([TILE], tl.float32)
    forward = tl.zeros([TILE], tl.float32)
    reverse = tl.zeros([TILE], tl.float32)
    for start in range(0, vocabulary, TILE):
        ids = start + lanes
        real = ids < vocabulary
        y = tl.load(target + row * target_stride + ids, mask=real, other=_MINUS_INF).to(tl.float32)
        z = tl.load(draft + row * draft_stride + ids, mask=real, other=_MINUS_INF).to(tl.float32)
        p = _law(y, of_target)
        q = _law(z, of_draft)
        alphas += tl.minimum(p, q, propagate_nan=_SPREAD)
        below += tl.where(q <= p, q, 0.0)
        if FORWARD:
            forward -= p * _gap(y, of_target, z, of_draft)
        if REVERSE:
            reverse += q * _gap(y, of_target, z, of_draft)
    tl.store(figures + row, tl.sum(alphas, 0))
    tl.store(figures + rows + row, tl.sum(below, 0))
    tl.store(figures + 2 * rows + row, tl.sum(forward, 0))
    tl.store(figures + 3 * rows + row, tl.sum(reverse, 0))


@triton.jit
@no_type_check
def _slope(
    target,
    draft,  # written over
    numbers,  # [8, rows], in the order in which they are loaded
    token_ids,
    target_stride,
    draft_stride,
    rows,
    vocabulary,
    FORWARD: tl.constexpr,
    REVERSE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    of_target = tl.load(numbers + row)
    of_draft = tl.load(numbers + rows + row)
    of_alpha = tl.load(numbers + 2 * rows + row)
    of_q = tl.load(numbers + 3 * rows + row)
    of_logprob = tl.load(numbers + 4 * rows + row)
    of_forward = tl.load(numbers + 5 * rows + row)
    of_reverse = tl.load(numbers + 6 * rows + row)
    reverse_kl = tl.load(numbers + 7 * rows + row)
    token = tl.load(token_ids + row)
    idle = (of_alpha == 0) & (of_logprob == 0) & (of_forward == 0) & (of_reverse == 0)
    lanes = tl.arange(0, TILE)
    for start in range(0, vocabulary, TILE):
        ids = start + lanes
        real = ids < vocabulary
        y = tl.load(target + row * target_stride + ids, mask=real, other=_MINUS_INF).to(tl.float32)
        z = tl.load(draft + row * draft_stride + ids, mask=real, other=_MINUS_INF).to(tl.float32)
        p = _law(y, of_target)
        q = _law(z, of_draft)
        factor = tl.where(q <= p, of_alpha, 0.0) - of_q
        if REVERSE:
            factor += of_reverse * (_gap(y, of_target, z, of_draft) - reverse_kl)
        slope = factor * q
        if FORWARD:
            slope -= of_forward * p
        slope += tl.where(ids == token, of_logprob, 0.0)
        slope = tl.where(idle, 0.0, slope)
        tl.store(draft + row * draft_stride + ids, slope, mask=real)


TRITON_ROWS = RowKernel(normaliser=normaliser_of, measure=measure, slope_=slope_)
