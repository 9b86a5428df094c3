"""The teacher's signal on sampled tokens: a reward per token, not a loss.

    d_t = log p_T(y_t) - log p_S(y_t),    y_t ~ p_S

As an advantage, its expected policy gradient is minus the gradient of the reverse KL of p_S to p_T at
each visited prefix. That holds only for a detached d: differentiating it as well adds noise on
fresh samples and a bias as soon as any token is clipped, masked or stale.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from turnpoint.losses.laws import LOWEST_LOGPROB, floored
from turnpoint.metrics import Mean, Metric, Quantile, Sum


def sampled_token_signal(
    *,
    student_logprobs: Float[Tensor, "*tokens"],
    teacher_logprobs: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"] | None = None,
    clip: float | None = None,
) -> Float[Tensor, "*tokens"]:
    """Returns d_t in nats, detached; 0 where `mask` is False, whatever stands there.

    Both log-probabilities must be of the same token at the same temperature. On stale data the student is
    the current policy, not the one that sampled. `clip` bounds |d_t| in nats, for the rare tokens that a
    teacher finds all but impossible. -inf counts as -100 (`turnpoint.losses.laws.LOWEST_LOGPROB`), so that
    d is finite without a clip too; NaN stays. `signal_metrics` counts both.

    Raises ValueError for a clip that is not positive.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip bounds |d| in nats and must be positive, got {clip}")
    signal = floored(teacher_logprobs) - floored(student_logprobs)
    if clip is not None:
        signal = signal.clamp(-clip, clip)
    return signal if mask is None else torch.where(mask, signal, 0.0)


def signal_metrics(
    *,
    student_logprobs: Float[Tensor, "*tokens"],
    teacher_logprobs: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"] | None = None,
    clip: float | None = None,
) -> dict[str, Metric]:
    """Returns how far the teacher is and what `sampled_token_signal` changed, over unmasked tokens.

    `signal_kl` is the mean of -d before any clip (k1, nats): an estimate of KL(student || teacher) per
    token if the student drew the tokens. `signal_size_median` and `signal_size_p99` are of |d| before any
    clip. `signal_clipped` is the share of tokens whose d the clip changed, `signal_floored` how many the
    teacher gave less than -100 nats, -inf among them. Raises as `sampled_token_signal` does.
    """
    free = sampled_token_signal(student_logprobs=student_logprobs, teacher_logprobs=teacher_logprobs)
    used = sampled_token_signal(
        student_logprobs=student_logprobs, teacher_logprobs=teacher_logprobs, clip=clip
    )
    floor = teacher_logprobs < LOWEST_LOGPROB
    if mask is not None:
        free, used, floor = free[mask], used[mask], floor[mask]
    gaps, clipped, floored_tokens = (
        [float(value) for value in column.flatten().cpu()] for column in (free, used != free, floor)
    )
    sizes = tuple(abs(gap) for gap in gaps)
    return {
        "signal_kl": Mean(-math.fsum(gaps), len(gaps)),
        "signal_clipped": Mean(sum(clipped), len(gaps)),
        "signal_floored": Sum(sum(floored_tokens)),
        "signal_size_median": Quantile(0.5, sizes),
        "signal_size_p99": Quantile(0.99, sizes),
    }
