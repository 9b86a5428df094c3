"""MTP heads as the drafter of an engine: their keys and values, row by row beside those of the batch.

    a round of a row    the anchors that are new since the last one, from the policy's true states
                        the chain from the newest of them, on its own drafts, whose keys the next round writes over

New sequences with the same beginning, such as members of a group, compute it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from turnpoint.engine.layout import DecodeRows, Grid, SpanChunk, StepLayout
from turnpoint.engine.prefix_cache import common_prefix
from turnpoint.engine.rows import Rows
from turnpoint.engine.span import CacheShape, LayerShape
from turnpoint.errors import ModelError
from turnpoint.models.attention import AttentionCall, AttentionLayout
from turnpoint.models.mtp import MtpHeads
from turnpoint.types import TokenIds, token_array

_CHUNK = 16  # new anchors of one row; rows with more are computed one after the other


class MtpDrafter:
    """A `Drafter` of recurrent heads with one layer, which every depth uses.

    Raises ModelError for heads whose chains an engine cannot go on with: several layers, a cache per depth,
    or states from before the final norm, which the engine does not keep.
    """

    def __init__(self, heads: MtpHeads) -> None:
        layout = heads.layout
        if layout.layers != 1 or layout.attention != "first_use" or layout.hidden != "post_norm":
            raise ModelError(
                f"draft heads of layout {layout.name} with {layout.layers} layers, {layout.attention} attention and "
                f"{layout.hidden} states: the engine drafts with one layer, first_use and post_norm"
            )
        self._heads = heads
        self._rows: Rows | None = None
        self.clear()

    def clear(self) -> None:
        """As `Drafter.clear`."""
        self._ids: dict[int, TokenIds] = {}  # of each row, the tokens that its anchors read

    def move(self, row: int, to: int) -> None:
        """As `Drafter.move`."""
        self._ids[to] = self._ids.pop(row)
        count, rows = len(self._ids[to]), self._storage()
        rows.view(to, 0, count).fill([rows.view(row, 0, count)])

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
        new = [_News(*news) for news in zip(rows, starts, hidden, token_ids, strict=True)]
        self._fit(new, max(depths))
        self._share([news for news in new if news.start == 0])
        anchors = np.array([len(self._ids[row]) - 1 for row in rows])
        states, carried = self._anchors(new)
        for depth in range(1, max(depths) + 1):
            deep = np.array([at for at, most in enumerate(depths) if most >= depth])
            if depth > 1:
                places = self._tensor(np.array([at for at, most in enumerate(depths) if most >= depth - 1]).searchsorted(deep))
                states, carried = self._further(
                    depth,
                    carried[places],
                    drawn[places],  # type: ignore[possibly-undefined]  # by the depth before
                    rows=np.array(rows)[deep],
                    positions=anchors[deep] + depth - 1,
                )
            drawn = draw(head(states))
