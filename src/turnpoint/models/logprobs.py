"""Log-probabilities of given tokens without ever keeping tokens x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import checkpoint


def chunked_logprobs(
    logits: Callable[[Tensor], Tensor],
    *,
    hidden: Float[Tensor, "N D"],
    targets: Int[Tensor, " N"],
    temperature: float,
    chunk: int,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Returns log softmax(logits / temperature) of `targets`, and the entropy of each law, both in nats.

    `logits` maps [n, D] to [n, V], as `Decoder.logits` does; ids at -inf are outside the law. At most
    `chunk` rows of logits exist at a time and none outlives its chunk: backward computes them again, one
    product with the head more for memory that does not grow with V. Log-probabilities differentiate to
    `hidden` and to what `logits` holds; the entropy has no gradient and costs the forward pass alone.
    """
    parts = [
        _recomputed(_logprobs_and_entropy, logits, rows, ids, temperature)
        for rows, ids in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _logprobs_and_entropy(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    laws = torch.log_softmax(logits(hidden) / temperature, dim=-1)
    logprobs = laws.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    # last, because the second computation stops at what backward needs
    probs = laws.detach().exp()
    return logprobs, -torch.xlogy(probs, probs).sum(-1)


def _recomputed(function: Callable[..., tuple[Tensor, Tensor]], *arguments: Any) -> tuple[Tensor, Tensor]:
    run = cast("Callable[..., tuple[Tensor, Tensor]]", checkpoint.checkpoint)
    return run(function, *arguments, use_reentrant=False, preserve_rng_state=False)
