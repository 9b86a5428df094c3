"""Draft heads side by side: each depth its own block over the same hidden state, no chain and no attention.

    g_i = h_t + SiLU(W_i h_t + b_i)          draft of token t + i + 1 = head(g_i)

As the heads of Medusa (arXiv 2401.10774), but with the backbone's output head for all of them. Blind to the
tokens in between, so weaker than a chain, and cheaper: all depths in one pass, no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from turnpoint.models.mtp import Chain
from turnpoint.models.mtp_host import Host
from turnpoint.models.mtp_layout import ParallelLayout
from turnpoint.models.mtp_shift import chain_mask, check_depth, check_lengths


class ParallelHeads(nn.Module):
    """Parallel draft heads for the backbone `host`; new ones draft what the backbone predicts next."""

    def __init__(self, host: Host, layout: ParallelLayout, *, trained_depth: int = 0) -> None:
        super().__init__()
        check_depth(layout.depth)
        weight = host.embedding_weight
        self.host = host
        self.layout = layout
        self.trained_depth = trained_depth
        self.blocks = nn.ModuleList(
            nn.Linear(host.width, host.width, dtype=weight.dtype, device="meta").to_empty(
                device=weight.device
            )
            for _ in range(layout.depth)
        )
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def max_depth(self) -> int:
        """How many tokens they draft: one for each block."""
        return self.layout.depth

    @contextmanager
    def watching(self) -> Generator[Callable[[Tensor], Tensor]]:
        """Gives what the heads are fed, as `MtpHeads.watching`: the last hidden states, detached."""
        yield Tensor.detach

    def draft(self, hidden: Float[Tensor, "n D"], *, depth: int) -> Float[Tensor, "depth n D"]:
        """Returns the states for the output head at depths 1 .. `depth`, of anchors with state `hidden`."""
        check_depth(depth, self.max_depth)
        return torch.stack([hidden + functional.silu(block(hidden)) for block in self.blocks[:depth]])

    def chain(
        self,
        *,
        hidden: Float[Tensor, "T D"],
        token_ids: Int[Tensor, " T"],
        positions: Int[Tensor, " T"],
        lengths: Sequence[int],
        depth: int,
        valid: Bool[Tensor, " T"] | None = None,
    ) -> Chain:
        """Returns what `MtpHeads.chain` does, for the same training; tokens in between make no difference."""
        check_lengths(lengths, len(positions))
        states = self.draft(hidden.detach(), depth=depth)
        everything = torch.ones_like(token_ids, dtype=torch.bool)
        counts = chain_mask(valid=everything if valid is None else valid, depth=depth, lengths=lengths)
        return Chain(hidden=states, counts=counts)
