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


class _TokenLogprobs(torch.autograd.Function):
    """log softmax at one target per row, differentiated by d/dz_v = [v = target] - p_v in one pass.

    autograd's own way fills [n, V] with zeros for the choice and passes over it again for the softmax.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        laws = torch.log_softmax(logits, dim=-1)
        ctx.save_for_backward(laws, targets)
        ctx.mark_non_differentiable(laws)
        return laws.gather(-1, targets.unsqueeze(-1)).squeeze(-1), laws

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        saved: tuple[Tensor, Tensor] = ctx.saved_tensors
        laws, targets = saved
        slope = laws.exp().mul_(-grad.unsqueeze(-1))
        return slope.scatter_add_(-1, targets.unsqueeze(-1), grad.unsqueeze(-1)), None


def _logprobs_and_entropy(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    scores = logits(hidden)
    if temperature != 1.0:
        scores = scores / temperature
    logprobs, laws = cast("tuple[Tensor, Tensor]", _TokenLogprobs.apply(scores, targets))
    # last, because the second computation stops at what backward needs
    probs = laws.exp()
    finite = laws.clamp_min(torch.finfo(laws.dtype).min)  # outside the law: 0 * -inf is 0 here
    entropy: Tensor = -cast(Any, torch.linalg).vecdot(probs, finite)
    return logprobs, entropy


def _recomputed(function: Callable[..., tuple[Tensor, Tensor]], *arguments: Any) -> tuple[Tensor, Tensor]:
    run = cast("Callable[..., tuple[Tensor, Tensor]]", checkpoint.checkpoint)
    return run(function, *arguments, use_reentrant=False, preserve_rng_state=False)
