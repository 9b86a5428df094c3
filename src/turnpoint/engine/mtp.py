"""MTP heads as the drafter of an engine: their keys and values, row by row beside those of the batch.

    anchors   tokens that are new since the row's last round, from the policy's own states
    chain     from the newest anchor on, on its own drafts; the next round's anchors are written over its keys

Sequences that begin alike, such as members of a group, compute that once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.engine.layout import DecodeRows, Grid, SpanChunk, StepLayout
from turnpoint.engine.prefix_cache import common_prefix
from turnpoint.engine.rows import Rows
from turnpoint.engine.span import CacheShape, ShapeProbe
from turnpoint.errors import ModelError
from turnpoint.models.attention import AttentionCall, AttentionLayout
from turnpoint.models.mtp import DraftStep, MtpHeads
from turnpoint.types import TokenIds, token_array

_FEW = 16  # anchors of a row that are computed together with other rows'


class MtpDrafter:
    """A `Drafter` of recurrent heads with one layer, which every depth uses.

    Raises ModelError for heads whose chains it cannot go on with: several layers, or a cache per depth; and
    as `MtpHeads.fed_by`.
    """

    def __init__(self, heads: MtpHeads) -> None:
        layout = heads.layout
        if layout.layers != 1 or layout.attention != "first_use":
            raise ModelError(
                f"draft heads of layout {layout.name} ({layout.layers} layers, {layout.attention} attention) "
                f"cannot draft in an engine, which takes one layer and first_use; train heads of kind fresh"
            )
        self._heads = heads
        heads.fed_by(torch.zeros_like(heads.host.embedding_weight[:1]))  # refuses what it would refuse later
        self._rows = Rows(_shape(heads))
        self.clear()

    def clear(self) -> None:
        """As `Drafter.clear`."""
        self._ids: dict[int, TokenIds] = {}  # of each row, the tokens that its anchors read
        self._firsts: dict[int, Tensor] = {}  # of each row, the first anchor's state: what came before it
        self._rows.clear()

    def move(self, row: int, to: int) -> None:
        """As `Drafter.move`."""
        self._ids[to], self._firsts[to] = self._ids.pop(row), self._firsts.pop(row)
        count = len(self._ids[to])
        self._rows.view(to, 0, count).fill([self._rows.view(row, 0, count)])

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
        longest = max(start + len(ids) for start, ids in zip(starts, token_ids, strict=True))
        longest = max([longest, *map(len, self._ids.values())])
        self._rows.fit(1 + max([*rows, *self._ids]), longest + max(depths))
        new = [
            self._few(row, start, self._heads.fed_by(states), ids)
            for row, start, states, ids in zip(rows, starts, hidden, token_ids, strict=True)
        ]
        anchors = np.array(
            [len(self._ids[row]) + len(ids) - 1 for row, (_, ids) in zip(rows, new, strict=True)]
        )
        step = self._anchors(rows, new)
        going, numbers = np.arange(len(rows)), np.array(rows)
        for depth in range(1, max(depths) + 1):
            drawn = draw(head(step.hidden))
            on = np.array(depths)[going] > depth
            if not on.any():
                return
            kept = torch.from_numpy(on).to(drawn.device)
            going = going[on]
            step = self._run(
                depth + 1,
                step.carried[kept],
                drawn[kept],
                rows=numbers[going],
                first=anchors[going] + depth,
                counts=np.ones(len(going), dtype=np.int64),
            )

    # --- anchors ----------------------------------------------------------------------------------

    def _few(self, row: int, start: int, hidden: Tensor, ids: TokenIds) -> tuple[Tensor, TokenIds]:
        """Returns a few of a row's new anchors; the rest is there, from another row or a pass of its own."""
        if start == 0:
            shared = self._take_over(row, hidden[0], ids)
            self._ids[row], self._firsts[row] = ids[:shared], hidden[0]
            hidden, ids = hidden[shared:], ids[shared:]
        if len(ids) > _FEW:
            self._prefill(row, hidden[:-1], ids[:-1])
            hidden, ids = hidden[-1:], ids[-1:]
        return hidden, ids

    def _take_over(self, row: int, first: Tensor, ids: TokenIds) -> int:
        """Copies to `row` what the row most like it has in common with it; returns how many anchors."""
        donors = [
            it for it, state in self._firsts.items() if it != row and torch.allclose(state, first, rtol=0.01)
        ]
        best = max(donors, key=lambda it: common_prefix(self._ids[it], ids), default=row)
        if best == row:
            return 0
        shared = min(common_prefix(self._ids[best], ids), len(ids) - 1)
        self._rows.view(row, 0, shared).fill([self._rows.view(best, 0, shared)])
        return shared

    def _prefill(self, row: int, hidden: Tensor, ids: TokenIds) -> None:
        start = len(self._ids[row])
        end = start + len(ids)
        piece = SpanChunk(span=self._rows.view(row, 0, end), start=start, end=end)
        nobody = torch.zeros(0, dtype=torch.long, device=hidden.device)
        decoding = DecodeRows(own=self._rows, shared=nobody, trunks=[], positions=nobody, row=nobody)
        self._heads.step(
            depth=1,
            hidden=hidden,
            token_ids=self._tensor(ids),
            positions=torch.arange(start, end, device=hidden.device),
            layout=_Alone(StepLayout(decoding=decoding, chunks=[piece])),
        )
        self._ids[row] = token_array(np.concatenate([self._ids[row], ids]))

    def _anchors(self, rows: Sequence[int], new: Sequence[tuple[Tensor, TokenIds]]) -> DraftStep:
        """Returns what depth 1 makes of each row's newest anchor."""
        counts = np.array([len(ids) for _, ids in new])
        step = self._run(
            1,
            torch.cat([states for states, _ in new]),
            self._tensor(np.concatenate([ids for _, ids in new])),
            rows=np.array(rows),
            first=np.array([len(self._ids[row]) for row in rows]),
            counts=counts,
        )
        for row, (_, ids) in zip(rows, new, strict=True):
            self._ids[row] = token_array(np.concatenate([self._ids[row], ids]))
        newest = self._tensor(counts.cumsum() - 1)
        return DraftStep(step.hidden[newest], step.carried[newest])

    # --- the heads --------------------------------------------------------------------------------

    def _run(
        self,
        depth: int,
        hidden: Tensor,
        token_ids: Tensor,
        *,
        rows: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
    ) -> DraftStep:
        """Runs one depth over the next `counts` places from `first` on of each of `rows`, row by row."""
        positions, at, grid = Grid.of(self._tensor(first), self._tensor(counts))
        decoding = DecodeRows(
            own=self._rows,
            shared=torch.zeros(len(rows), dtype=torch.long, device=hidden.device),
            trunks=[],
            positions=positions,
            row=at,
            grid=grid,
            numbers=None if _are_first(rows) else self._tensor(rows),
        )
        return self._heads.step(
            depth=depth,
            hidden=hidden,
            token_ids=token_ids,
            positions=positions,
            layout=_Alone(StepLayout(decoding=decoding, chunks=[])),
        )

    def _tensor(self, array: npt.NDArray[np.int64] | TokenIds) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._rows.hidden.device)


def _are_first(rows: npt.NDArray[np.int64]) -> bool:
    return bool((rows == np.arange(len(rows))).all())


class _Alone(AttentionLayout):
    """The only layer of a storage, whatever number it has in the model that it was copied from."""

    def __init__(self, layout: AttentionLayout) -> None:
        self._layout = layout

    def attend(self, call: AttentionCall) -> Tensor:
        return self._layout.attend(replace(call, layer=0))


@torch.no_grad()
def _shape(heads: MtpHeads) -> CacheShape:
    weight = heads.host.embedding_weight
    probe, place = ShapeProbe(), torch.zeros(1, dtype=torch.long, device=weight.device)
    state = torch.zeros(1, heads.host.width, dtype=weight.dtype, device=weight.device)
    heads.step(depth=1, hidden=state, token_ids=place, positions=place, layout=probe)
    return CacheShape(
        layers=tuple(probe.layers.values()), hidden_dim=0, dtype=weight.dtype, device=weight.device
    )
