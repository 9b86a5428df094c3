"""Tokens per round of speculative decoding, from an ordinary rollout, for any depth, without speculating.

Given the text that was emitted, speculation that verifies token by token is a Markov chain over its
positions: the draft of token x, at any depth of a round, survives with probability a = min(1, q(x) / p(x)),
independently of the rest. From the start of a round the chain moves on by one token for each draft that
survives in a row, and by one more that the target gives. With w_s the probability that some round starts at
s, the rounds number R = sum_s w_s, and the tokens per round are N / R (the method of AngelSpec-EDR; arXiv
2606.12370 counts the same by running it).
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from turnpoint.drafting.chains import accept_ratios


def accept_length(
    *, target_logprobs: Float[Tensor, " N"], draft_logprobs: Float[Tensor, "starts gamma"]
) -> float:
    """Returns the expected tokens per round, the target's own included: from 1 to gamma + 1.

    `target_logprobs` [N], nats, of the emitted tokens under the law they were drawn from.
    `draft_logprobs[s, i]` is the draft's of emitted token s + i in a round that starts at s; what would lie
    past the end is not read. A text ends its last round, which may therefore be short.

    The first token of a text comes from the prompt's own pass in an engine; cut it off to count rounds alone.
    Raises ValueError for no tokens and for log-probabilities of another number of them.
    """
    length, gamma = draft_logprobs.shape
    if not length or len(target_logprobs) != length:
        raise ValueError(
            f"{len(target_logprobs)} log-probabilities of the target for {length} starts of rounds; both are "
            f"one per token of a text that is not empty"
        )
    starts, depths = torch.arange(length).unsqueeze(1), torch.arange(gamma)
    inside = (starts + depths < length).to(draft_logprobs.device)
    tokens = (starts + depths).clamp(max=length - 1).to(draft_logprobs.device)
    ratios = accept_ratios(
        target_logprobs=target_logprobs.detach().double()[tokens],
        draft_logprobs=draft_logprobs.detach().double(),
    )
    survival = torch.where(inside, ratios, 0.0).cumprod(-1)
    return length / _rounds(cast("list[list[float]]", survival.tolist()))


def _rounds(survival: list[list[float]]) -> float:
    """Returns the expected rounds; `survival[s][j]`: of the first j + 1 drafts of a round from s."""
    length = len(survival)
    starts = [1.0, *[0.0] * length]  # probability that a round starts there; the last is behind the text
    for start, kept in enumerate(survival):
        reached = [1.0, *kept, 0.0]  # at least j drafts survive
        for accepted in range(len(kept) + 1):
            ends = min(start + accepted + 1, length)
            starts[ends] += starts[start] * (reached[accepted] - reached[accepted + 1])
    return sum(starts[:length])
