"""What the row pass of a fused draft loss takes and gives, whichever kernel runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigures:
    """Of each of n drafted rows, float32 [n]."""

    normaliser: Tensor  # log sum exp of the draft's logits
    alphas: Tensor  # sum min(p, q)
    below: Tensor  # sum of q where q <= p
    forward_kl: Tensor  # nats; zeros unless asked for
    reverse_kl: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWeights:
    """Derivatives of the loss by each row's figures, float32 [n]."""

    alphas: Tensor
    draft_logprobs: Tensor  # of the text's token
    forward_kl: Tensor
    reverse_kl: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel:
    """Measures rows and turns derivatives by their figures into derivatives by their logits.

    Logits are [n, V] in any float type and with any stride between rows, all else is [n]. Functions:

    `normaliser(logits)` gives log sum exp of each row.
    `measure(target_logits=, target_normaliser=, draft_logits=, needs=)` gives `RowFigures`.
    `slope_(target_logits=, target_normaliser=, draft_logits=, token_ids=, figures=, weights=, needs=)` writes
    the derivative of the loss by the draft's logits in their place,

        q_v A ([q_v <= p_v] - S) + L ([v = x] - q_v) + F (q_v - p_v) + R q_v (log q_v / p_v - KL),

    with A, L, F, R the `weights` of the row; a row whose weights are all 0 gets 0, whatever stands in it.
    """

    normaliser: Callable[[Tensor], Tensor]
    measure: Callable[..., RowFigures]
    slope_: Callable[..., None]
