"""From a score per token to a few places to fork: greedy, best first, with distance between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor


def select_branch_points(
    scores: Shaped[Tensor, " n"] | Sequence[float],
    *,
    count: int,
    candidates: Bool[Tensor, " n"] | Sequence[bool] | None = None,
    min_gap: int = 1,
    skip_first: int = 0,
    skip_last: int = 0,
) -> list[int]:
    """Returns at most `count` positions, the best first; of equal scores the earlier one comes first.

    `candidates` are the tokens that may be chosen (default: all), without the first `skip_first` and the last
    `skip_last`. Any two positions are at least `min_gap` tokens apart. NaN is never chosen; infinities are
    scores like any other. Fewer come back when no more is left. Raises ValueError for negative numbers,
    `min_gap` below 1, and masks of another length.

    >>> select_branch_points([0.1, 5.0, 4.0, float("nan"), 3.0], count=2, min_gap=2)
    [1, 4]
    """
    if count < 0 or skip_first < 0 or skip_last < 0 or min_gap < 1:
        raise ValueError(
            f"count {count}, skip_first {skip_first} and skip_last {skip_last} must be at least 0, "
            f"min_gap {min_gap} at least 1"
        )
    values = torch.as_tensor(scores, dtype=torch.float64)
    allowed = torch.ones(len(values), dtype=torch.bool)
    if candidates is not None:
        allowed = torch.as_tensor(candidates, dtype=torch.bool, device="cpu").clone()
    if values.ndim != 1 or allowed.shape != values.shape:
        raise ValueError(
            f"scores and candidates must be [n], got {list(values.shape)}, {list(allowed.shape)}"
        )
    allowed &= ~values.cpu().isnan()
    allowed[:skip_first] = False
    allowed[max(0, len(values) - skip_last) :] = False
    chosen: list[int] = []
    order = cast(list[int], torch.argsort(values.cpu(), descending=True, stable=True).tolist())
    for position in order:
        if len(chosen) == count:
            break
        if allowed[position]:
            chosen.append(position)
            allowed[max(0, position - min_gap + 1) : position + min_gap] = False
    return chosen
