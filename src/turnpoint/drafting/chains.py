"""How many tokens of a drafted chain are accepted, as a loss over its depths.

    end to end    1 - 1/n sum_j  alpha_1 ... alpha_j                  (Bebop, arXiv 2606.12370, eq. 13)
    path-wise     1 - 1/n sum_j  a_1 ... a_{j-1} alpha_j,   a_i = min(1, q_i(x_i) / p_i(x_i))

The first j drafts are all accepted with probability E_{x ~ p}[a_1 ... a_{j-1} alpha_j]: along a text that the
target sampled, a_i is how often token x_i would have been accepted, and its mean is alpha_i. So the path-wise
form is an unbiased estimate for one text, while the end-to-end form puts means in the place of ratios and
drops how they vary together; it is neither a bound nor equal (the method of AngelSpec-EDR; nothing of it
is used here). Products are nested, x_1 (1 + x_2 (1 + ...)), so that a factor of 0 needs no division.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def end_to_end_tv_loss(
    alphas: Float[Tensor, "*anchors gamma"], *, mask: Bool[Tensor, "*anchors gamma"] | None = None
) -> Float[Tensor, "*anchors"]:
    """Returns 1 - mean_j prod_{i <= j} alpha_i of each chain, in [0, 1].

    `mask` is True for depths that there are, which come first: a chain near the end of a text is shorter,
    and its mean over what it has. A chain without depths gives 0. What stands at masked depths is not read.
    """
    return _one_minus_mean(alphas, alphas, mask)


def pathwise_tv_loss(
    *,
    alphas: Float[Tensor, "*anchors gamma"],
    accept_ratios: Float[Tensor, "*anchors gamma"],
    mask: Bool[Tensor, "*anchors gamma"] | None = None,
) -> Float[Tensor, "*anchors"]:
    """Returns 1 - mean_j (prod_{i < j} a_i) alpha_j of each chain, in [0, 1]; see `end_to_end_tv_loss`.

    `accept_ratios` are min(1, q(x) / p(x)) of the tokens of a text drawn from p itself, attached: a token
    that q gives too little lowers everything behind it. That of the last depth is not read. On a text that
    another law drew this estimates nothing; use `end_to_end_tv_loss` there.
    """
    return _one_minus_mean(alphas, accept_ratios, mask)


def accept_ratios(
    *, target_logprobs: Float[Tensor, "*tokens"], draft_logprobs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """Returns min(1, q(x) / p(x)) from log-probabilities of the same tokens, nats; p is held fixed."""
    gap = draft_logprobs - target_logprobs.detach()
    return torch.where(gap < 0, gap, 0.0).exp()


def _one_minus_mean(alphas: Tensor, factors: Tensor, mask: Tensor | None) -> Tensor:
    """Returns 1 - (alpha_1 + x_1 (alpha_2 + x_2 (...))) / n for n depths."""
    depths = alphas.shape[-1]
    if mask is None:
        mask = torch.ones_like(alphas, dtype=torch.bool)
    total = torch.zeros_like(alphas[..., 0])
    for depth in reversed(range(depths)):
        last = depth == depths - 1
        behind = 0.0 if last else torch.where(mask[..., depth + 1], factors[..., depth] * total, 0.0)
        total = torch.where(mask[..., depth], alphas[..., depth] + behind, 0.0)
    count = mask.sum(-1)
    return torch.where(count > 0, 1 - total / count.clamp(min=1), 0.0)
