"""The teacher's signal on sampled tokens: a reward per token, not a loss.

    d_t = log p_T(y_t) - log p_S(y_t),    y_t ~ p_S

As an advantage, its expected policy gradient is minus the gradient of the reverse KL of p_S to p_T at
each visited prefix. That holds only for a detached d: differentiating it as well adds noise on
fresh samples and a bias as soon as any token is clipped, masked or stale.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


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
    teacher finds all but impossible. Raises ValueError for a clip that is not positive.
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip bounds |d| in nats and must be positive, got {clip}")
    signal = teacher_logprobs.detach() - student_logprobs.detach()
    if clip is not None:
        signal = signal.clamp(-clip, clip)
    return signal if mask is None else torch.where(mask, signal, 0.0)
