"""Parallel heads as the drafter of an engine: all depths from the newest state alone, nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from turnpoint.models.mtp_parallel import ParallelHeads
from turnpoint.types import TokenIds


class ParallelDrafter:
    """A `Drafter` of heads side by side; a depth over `ParallelHeads.max_depth` raises ValueError."""

    def __init__(self, heads: ParallelHeads) -> None:
        self._heads = heads

    @torch.inference_mode()
    def propose(
        self,
        *,
        rows: Sequence[int],
        starts: Sequence[int],
        hidden: Sequence[Tensor],
        token_ids: Sequence[TokenIds],
        depths: Sequence[int],
        head: Callable[[Tensor], Tensor],
        draw: Callable[[Tensor], Tensor],
    ) -> None:
        """As `Drafter.propose`."""
        newest = torch.stack([states[-1] for states in hidden])
        deep = torch.tensor(depths, device=newest.device)
        for depth, states in enumerate(self._heads.draft(newest, depth=max(depths)), start=1):
            draw(head(states[deep >= depth]))

    def move(self, row: int, to: int) -> None:
        """Keeps nothing of either."""

    def clear(self) -> None:
        """Keeps nothing."""
