"""The law that a KL term pulls towards: frozen weights of the policy's own model, or another model.

Frozen weights are swapped in for a forward pass and out again: no second model, and for an adapter a copy
of nothing but the adapter. Without a KL term there is no reference and no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from turnpoint.models.decoder import Decoder
from turnpoint.training.forward import tree_logprobs
from turnpoint.training.row import PackedTree

Reference: TypeAlias = Callable[[PackedTree], Tensor]  # [N] nats of the trained tokens


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies of the weights that training moves, by name."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return {name: weight.detach().clone() for name, weight in trained.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """How log-probabilities are taken; see `tree_logprobs`."""

    temperature: float
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelReference:
    """Another decoder over the same ids."""

    decoder: Decoder
    law: Law

    @torch.no_grad()
    def __call__(self, tree: PackedTree) -> Tensor:
        """Returns its [N] log-probabilities of the trained tokens, nats."""
        return tree_logprobs(self.decoder, tree, temperature=self.law.temperature, chunk=self.law.chunk)[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrozenReference:
    """The policy's own model with `weights` in place of those of the same names."""

    decoder: Decoder
    weights: Mapping[str, Tensor]
    law: Law

    @torch.no_grad()
    def __call__(self, tree: PackedTree) -> Tensor:
        """Returns its [N] log-probabilities of the trained tokens, nats; the policy is as before."""
        with _swapped(self.decoder.model, self.weights):
            return tree_logprobs(self.decoder, tree, temperature=self.law.temperature, chunk=self.law.chunk)[
                0
            ]


@contextmanager
def _swapped(model: nn.Module, weights: Mapping[str, Tensor]) -> Generator[None]:
    """Puts `weights` where the model reads its own; pointers move, nothing is copied."""
    own = {name: weight.data for name, weight in model.named_parameters() if name in weights}
    parameters = dict(model.named_parameters())
    try:
        for name, frozen in weights.items():
            parameters[name].data = frozen
        yield
    finally:
        for name, kept in own.items():
            parameters[name].data = kept
