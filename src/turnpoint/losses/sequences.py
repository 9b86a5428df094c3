"""Sums over the tokens of each sequence, without a loop over sequences."""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sequence_sums(
    values: Float[Tensor, "*tokens"],
    *,
    mask: Bool[Tensor, "*tokens"],
    sequence_ids: Int[Tensor, "*tokens"],
) -> Float[Tensor, "*tokens"]:
    """Returns at every unmasked token the sum of `values` over the unmasked tokens with its id; else 0.

    In float64, so that the order of the tokens does not show, and detached. Ids may be any integers, in
    any order; those at masked positions are not read.
    """
    known, index = cast("tuple[Tensor, Tensor]", sequence_ids[mask].unique(return_inverse=True))
    kept = values.detach()[mask].double()
    sums = kept.new_zeros(len(known)).index_add(0, index, kept)
    return torch.zeros_like(values, dtype=torch.float64).masked_scatter(mask, sums[index])
