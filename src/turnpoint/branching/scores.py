"""How much knowing the outcome changes the policy's mind about each token that it wrote.

    d_i = log p(y_i | x, h, y_<i) - log p(y_i | x, y_<i)        nats

    absolute   s_i = |d_i|                                      arXiv 2609.36864, equation 2
    signed     s_i = -d_i                                       what hindsight rejects, first
    decrease   s_i = -d_i where d_i < 0, else NaN               nothing but what hindsight rejects

    weighted by alternatives: s_i (1 - p(y_i | x, y_<i))        a sure token is drawn again by its fork

absolute is the paper's; the others are ours, since an increase is bounded by the token's own surprisal while
a decrease is not, and a fork at a sure token mostly repeats it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

DIRECTIONS = ("absolute", "signed", "decrease")


def hindsight_scores(
    *, base_logprobs: Float[Tensor, " n"], hindsight_logprobs: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Returns the paper's score of each token, [n] nats, from its log-probabilities without and with h.

    A token to which either law gives no probability or no number scores NaN, which no selection chooses. Not
    differentiable on purpose: scores choose, they do not train.

    >>> base, told = torch.tensor([-0.25, -0.5]), torch.tensor([-3.25, -0.25])
    >>> hindsight_scores(base_logprobs=base, hindsight_logprobs=told).tolist()
    [3.0, 0.25]
    """
    return _change(base_logprobs, hindsight_logprobs).abs()


def directed_scores(
    *,
    base_logprobs: Float[Tensor, " n"],
    hindsight_logprobs: Float[Tensor, " n"],
    direction: str = "absolute",
    weigh_alternatives: bool = False,
) -> Float[Tensor, " n"]:
    """Returns the score of each token, [n], by one of the forms above; absolute is `hindsight_scores`.

    Raises ValueError for an unknown direction.
    """
    change = _change(base_logprobs, hindsight_logprobs)
    match direction:
        case "absolute":
            scores = change.abs()
        case "signed":
            scores = -change
        case "decrease":
            scores = torch.where(change < 0, -change, torch.nan)
        case _:
            raise ValueError(f"unknown direction {direction!r}; known: {', '.join(DIRECTIONS)}")
    return scores * -base_logprobs.detach().clamp(max=0).expm1() if weigh_alternatives else scores


def _change(base: Tensor, told: Tensor) -> Tensor:
    change = told.detach() - base.detach()
    return torch.where(change.isfinite(), change, torch.nan)
