"""Verifies drafted tokens so that what comes out has the target's law, whatever drafted them.

    token        accept x_i while u_i q_i(x_i) < p_i(x_i); at the first failure draw from max(p_i - q_i, 0)
                 (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318)
    target_only  the same with all of q_i on x_i: accept with p_i(x_i), else draw from p_i without x_i
    block        accept the longest prefix whose own test passes (Sun et al., arXiv 2403.10444):
                 P_i = min(P_{i-1} p_i(x_i) / q_i(x_i), 1),  R_i = sum max(P_i p_{i+1} - q_{i+1}, 0),
                 u_i < R_i / (R_i + 1 - P_i) before the last, u_n < P_n for the last;
                 then draw from max(P_i p_{i+1} - q_{i+1}, 0): never fewer tokens than by token

One more token comes from the target's last row when all are accepted. All three are exact at any temperature
and with any filter of the target, as long as each x_i was drawn from the very q_i that is given (or, in
target_only, by any rule that does not look at the coins). To draw again from p after a rejection, to test
an argmax draft against a soft q, or to drop a token by what was drawn is another law.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.engine.sampler import draw

MODES = ("token", "block", "target_only")


def verify_chain(
    *,
    target_probs: Float[Tensor, "rows V"],
    draft_probs: Float[Tensor, "gamma V"],
    draft_ids: Int[Tensor, " gamma"],
    uniforms: Float[Tensor, " rows"],
    mode: str = "token",
) -> tuple[int, int]:
    """Returns how many drafted tokens are accepted, and the id of the token that follows them.

    `target_probs` has one row more than was drafted. `uniforms` lie in [0, 1): one coin per drafted token,
    and the last draws the final token by inverse CDF, never one without mass. `target_only` does not read
    `draft_probs`. Raises ValueError for tensors that do not fit each other and an unknown mode.
    """
    gamma = len(draft_ids)
    if len(target_probs) != gamma + 1 or len(uniforms) != gamma + 1 or len(draft_probs) != gamma:
        raise ValueError(
            f"{gamma} drafted tokens need as many laws of the draft, {gamma + 1} of the target and as many "
            f"uniforms, got {len(draft_probs)}, {len(target_probs)} and {len(uniforms)}"
        )
    accepted, following = verify_chains(
        target_probs=target_probs.unsqueeze(0),
        draft_probs=draft_probs.unsqueeze(0),
        draft_ids=draft_ids.unsqueeze(0),
        lengths=torch.tensor([gamma]),
        uniforms=uniforms.unsqueeze(0),
        mode=mode,
    )
    return int(accepted), int(following)


def verify_chains(
    *,
    target_probs: Float[Tensor, "n rows V"],
    draft_probs: Float[Tensor, "n gamma V"],
    draft_ids: Int[Tensor, "n gamma"],
    lengths: Int[Tensor, " n"],
    uniforms: Float[Tensor, "n rows"],
    mode: str = "token",
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Returns what `verify_chain` does of n chains, of which only the first `lengths` tokens were drafted.

    What stands behind a chain's length is not read, but for the target's row there and the last uniform: a
    chain of m tokens that are all accepted goes on with row m and, as any other, with `uniforms[:, -1]`.
    """
    if mode not in MODES:
        raise ValueError(f"there is no way to verify called {mode!r}; there are {', '.join(MODES)}")
    lengths = lengths.to(draft_ids.device)
    drafted = torch.arange(draft_ids.shape[1], device=draft_ids.device) < lengths.unsqueeze(1)
    if mode == "target_only":
        draft_probs = torch.zeros_like(target_probs[:, :-1]).scatter_(2, draft_ids.unsqueeze(2), 1.0)
    if mode == "block":
        accepted, scale = _longest(target_probs, draft_probs, draft_ids, uniforms, lengths)
    else:
        p, q = _of(target_probs[:, :-1], draft_ids), _of(draft_probs, draft_ids)
        accepted = ((uniforms[:, :-1] * q < p) & drafted).long().cumprod(1).sum(1)
        scale = torch.ones_like(target_probs[:, 0, 0])
    law = _following(target_probs, draft_probs, accepted, lengths, scale)
    return accepted, draw(probs=law, uniforms=uniforms[:, -1].double())


def _following(
    target_probs: Tensor, draft_probs: Tensor, accepted: Tensor, lengths: Tensor, scale: Tensor
) -> Tensor:
    """Returns the law, not normalised, of the token behind the accepted ones: what the draft left of p."""
    law = target_probs[torch.arange(len(accepted), device=accepted.device), accepted]
    rows = (accepted < lengths).nonzero().squeeze(1)
    if not len(rows):
        return law
    left = scale[rows].unsqueeze(1) * law[rows] - draft_probs[rows, accepted[rows]]
    left.clamp_(min=0)
    empty = left.sum(1, keepdim=True) == 0  # laws that are equal but for rounding
    return law.index_copy(0, rows, torch.where(empty, law[rows], left))


def _longest(
    target_probs: Tensor, draft_probs: Tensor, draft_ids: Tensor, uniforms: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns how long the longest prefix is that passes its own test, and P of it."""
    p, q = _of(target_probs[:, :-1], draft_ids), _of(draft_probs, draft_ids)
    accepted = torch.zeros_like(lengths)
    joint = scale = torch.ones_like(target_probs[:, 0, 0])
    for at in range(draft_ids.shape[1]):
        ratio = torch.where(p[:, at] > 0, p[:, at] / q[:, at], 0.0)
        joint = torch.where(joint > 0, (joint * ratio).clamp(max=1), 0.0)
        passes = joint
        if at + 1 < draft_ids.shape[1]:
            wanted = joint.unsqueeze(1) * target_probs[:, at + 1] - draft_probs[:, at + 1]
            rest = wanted.clamp_(min=0).sum(1)
            whole = rest + 1 - joint
            share = torch.where(whole > 0, rest / whole, 1.0)  # 0/0: both laws equal, the next one passes
            passes = torch.where(lengths == at + 1, joint, share)
        here = (uniforms[:, at] < passes) & (at < lengths)
        accepted, scale = torch.where(here, at + 1, accepted), torch.where(here, joint, scale)
    return accepted, scale


def _of(probs: Tensor, ids: Tensor) -> Tensor:
    return probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
