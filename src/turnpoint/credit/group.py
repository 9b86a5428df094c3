"""What a rollout deserves compared with its group.

    A_i = (r_i - b_i) / s,    over the n valid members of one group

    baseline  mean            b_i = mean of all n rewards
              leave_one_out   b_i = mean of the other n - 1 rewards
    scale     none            s = 1
              std             s = population standard deviation of the n rewards + 1e-6

mean and none are HDL's choice (arXiv 2609.36864, after Dr. GRPO, 2503.20783); mean and std are GRPO's
(2402.03300); leave_one_out is RLOO's (2402.14740). Dividing by the std weighs groups by their difficulty.

Without std, the expected gradient of a token is that of its return, times a factor. Where rollouts share
nothing, it is 1 under leave_one_out, which is unbiased, and 1 - 1/n under mean. Where N rollouts of a group
pass through the token, its baseline holds their share of the same gradient: 1 - (N - 1) / (n - 1) and 1 - N
/ n. Both are for places to fork that do not depend on the tokens after them (docs/branching.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from turnpoint.credit.overlong import Overlong, counts, reward_of
from turnpoint.types import Group, SegmentCredit

BASELINES = ("mean", "leave_one_out")
SCALES = ("none", "std")
_EPSILON = 1e-6  # in the rewards' unit


def group_advantages(
    rewards: Shaped[Tensor, " G"] | Sequence[float],
    *,
    baseline: str = "mean",
    scale: str = "none",
    valid: Bool[Tensor, " G"] | Sequence[bool] | None = None,
) -> Float[Tensor, " G"]:
    """Returns the advantage of each member of one group, [G], in the rewards' unit (with std: none).

    Invalid members get 0 and leave the others as if they were absent; their reward may be NaN. One valid
    member has nothing to be compared with and gets 0; equal rewards give exactly 0. Arithmetic is
    float64; the result has the dtype of a floating tensor of rewards, else torch's default. Never
    normalises over more than this group.

    >>> group_advantages([1.0, 0.0, 0.0, 0.0]).tolist()
    [0.75, -0.25, -0.25, -0.25]

    Raises ValueError for an unknown baseline or scale, a valid member without a finite reward, or
    rewards and validity that are not of the same length.
    """
    _check_names(baseline, scale)
    exact = torch.as_tensor(rewards, dtype=torch.float64)
    kept = torch.ones_like(exact, dtype=torch.bool) if valid is None else _mask(valid, exact)
    if exact.ndim != 1 or kept.shape != exact.shape:
        raise ValueError(f"rewards and valid must be [G], got {list(exact.shape)} and {list(kept.shape)}")
    if not exact[kept].isfinite().all():
        raise ValueError(f"a valid member needs a finite reward, got {exact.tolist()}")
    advantages = torch.zeros_like(exact)
    advantages[kept] = _compared(exact[kept], baseline, scale)
    if isinstance(rewards, Tensor) and rewards.is_floating_point():
        return advantages.to(rewards.dtype)
    return advantages.to(torch.get_default_dtype())


def _compared(rewards: Tensor, baseline: str, scale: str) -> Tensor:
    count = len(rewards)
    if count < 2:
        return torch.zeros_like(rewards)
    shifted = rewards - rewards[0]  # equal rewards become exact zeros, whatever their mean rounds to
    centred = shifted - shifted.mean()
    spread = centred.square().mean().sqrt() + _EPSILON if scale == "std" else 1.0
    factor = count / (count - 1) if baseline == "leave_one_out" else 1.0
    return centred * factor / spread


def _mask(valid: Tensor | Sequence[bool], like: Tensor) -> Tensor:
    return torch.as_tensor(valid, dtype=torch.bool, device=like.device)


def _check_names(baseline: str, scale: str) -> None:
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}; known: {', '.join(BASELINES)}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; known: {', '.join(SCALES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantage:
    """Gives every token that a member generated the member's `group_advantages`.

    A root is credited on all its tokens, a continuation on its suffix; what was reused has its own owner.
    Invalid members get weight 0, so that their tokens leave loss and denominators. `overlong` says what
    length costs; a branch is as long as its whole completion, reused tokens included. Raises ValueError
    for an unknown baseline or scale.
    """

    baseline: str = "mean"
    scale: str = "none"
    overlong: Overlong | None = None

    def __post_init__(self) -> None:
        _check_names(self.baseline, self.scale)

    def credit(self, group: Group) -> list[SegmentCredit]:
        """Returns one credit per POLICY segment, in the order of members and of their segments."""
        counted = [counts(member, self.overlong) for member in group.members]
        advantages = group_advantages(
            [reward_of(group, member, self.overlong) for member in group.members],
            baseline=self.baseline,
            scale=self.scale,
            valid=counted,
        )
        return [
            SegmentCredit(
                segment=segment.id,
                advantages=np.full(len(segment), float(advantage), np.float32),
                weights=np.full(len(segment), counted[index], np.float32),
            )
            for index, advantage in enumerate(advantages)
            for segment in group.generated(index)
        ]
