"""Random tokens for tests of losses, and how losses are called on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from turnpoint.losses import cross_entropy_loss, kl_loss, policy_gradient_loss
from turnpoint.metrics import Metrics

Tokens: TypeAlias = dict[str, Any]  # tensors by the name they are passed under
LossOf: TypeAlias = Callable[[Tokens, float], tuple[Tensor, Metrics]]

SEQUENCES = torch.tensor([7, -3, 0, 2**40])  # ids may be any integers


def batch(n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tokens:
    """Returns n tokens of interleaved sequences, ratios on both sides of both clips, a third masked."""
    draws = torch.Generator().manual_seed(seed)
    old = -torch.rand(n, generator=draws, dtype=dtype) * 3
    return {
        "logprobs": (old + torch.randn(n, generator=draws, dtype=dtype) * 0.3).requires_grad_(),
        "old_logprobs": old,
        "advantages": torch.randn(n, generator=draws, dtype=dtype),
        "mask": torch.rand(n, generator=draws) > 0.33,
        "weights": torch.rand(n, generator=draws, dtype=dtype) + 0.5,
        "sequence_ids": SEQUENCES[torch.randint(len(SEQUENCES), (n,), generator=draws)],
        "reference_logprobs": old + torch.randn(n, generator=draws, dtype=dtype) * 0.3,
    }


def select(tokens: Tokens, index: Tensor) -> Tokens:
    """Returns the tokens at `index`, with a fresh leaf for the gradient."""
    return {name: t.detach()[index].clone().requires_grad_(name == "logprobs") for name, t in tokens.items()}


def called(loss: Any, tokens: Tokens, denominator: float, **options: Any) -> tuple[Tensor, Metrics]:
    """Returns what `loss` says of the tensors it takes."""
    taken = inspect.signature(loss).parameters
    return loss(**{n: t for n, t in tokens.items() if n in taken}, denominator=denominator, **options)


def policy_loss(**options: Any) -> LossOf:
    """Returns `policy_gradient_loss` with `options`."""
    return partial(called, policy_gradient_loss, **options)


LOSSES: dict[str, LossOf] = {
    "ppo_clip": policy_loss(),
    "dual clip": policy_loss(dual_clip=1.4),
    "gspo": policy_loss(objective="gspo", clip_low=0.05, clip_high=0.05),
    "cispo": policy_loss(objective="cispo", clip_low=0.3),
    "reinforce": policy_loss(objective="reinforce"),
    "reverse KL": partial(called, kl_loss),
    "forward KL": partial(called, kl_loss, divergence="forward"),
    "cross-entropy": partial(called, cross_entropy_loss),
}


def value_and_gradient(loss: LossOf, tokens: Tokens, denominator: float = 7.0) -> tuple[Tensor, Tensor]:
    """Returns the loss and its gradient, with respect to each token's log-probability."""
    value, _ = loss(tokens, denominator)
    leaf: Tensor = tokens["logprobs"]
    return value.detach(), torch.autograd.grad(value, leaf)[0]
