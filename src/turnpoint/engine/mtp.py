"""MTP heads as the drafter of an engine: their keys and values, row by row beside those of the batch.

    anchors   a row's tokens but the newest, from the policy's own states; anchor t reads t + i at depth i
    chain     the newest anchor's, on its own drafts; the next round's anchors are written over its keys

A depth that has a cache of its own (a slot: each of several layers in its first use, or every depth) goes
over anchors as in training, the last ones of them with what was drafted as the tokens to come. Those, and
what shallower rounds left out, are computed anew once the tokens are there: so the states of all anchors
are kept. A layer that is used again goes on with its keys.

Sequences that begin alike, such as members of a group, compute that once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.engine.anchors import Anchors, Chains
from turnpoint.engine.layout import DecodeRows, Grid, SpanChunk, StepLayout
from turnpoint.engine.prefix_cache import common_prefix
from turnpoint.engine.rows import Rows
from turnpoint.engine.span import CacheShape, ShapeProbe
from turnpoint.models.attention import AttentionCall, AttentionLayout
from turnpoint.models.mtp import DraftStep, MtpHeads
from turnpoint.models.mtp_layout import MAX_DEPTH
from turnpoint.types import TokenIds, token_array

_FEW = 16  # anchors of a row that are computed together with other rows'


class MtpDrafter:
    """A `Drafter` of recurrent heads that drafts up to `deepest` tokens.

    Raises ModelError as `MtpHeads.fed_by`.
    """

    def __init__(self, heads: MtpHeads, *, deepest: int = MAX_DEPTH) -> None:
        self._heads = heads
        heads.fed_by(torch.zeros_like(heads.host.embedding_weight[:1]))  # refuses what it would refuse later
        self._slots = heads.layout.slots(deepest)
        self._storage = Rows(draft_cache(heads, deepest=deepest))
        self.clear()

    def clear(self) -> None:
        """As `Drafter.clear`."""
        self._rows: dict[int, Anchors] = {}
        self._storage.clear()

    def move(self, row: int, to: int) -> None:
        """As `Drafter.move`."""
        self._rows[to] = self._rows.pop(row)
        count = len(self._rows[to].ids)
        self._storage.view(to, 0, count).fill([self._storage.view(row, 0, count)])

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
        longest = max([longest, *(len(row.ids) for row in self._rows.values())])
        self._storage.fit(1 + max([*rows, *self._rows]), longest + max(depths))
        for row, start, states, ids, depth in zip(rows, starts, hidden, token_ids, depths, strict=True):
            self._learn(row, start, self._heads.fed_by(states), ids)
            self._prefill(row, min(depth, self._slots))
        self._draft(Chains(rows, depths), head, draw)
        for row, depth in zip(rows, depths, strict=True):
            self._rows[row].finish(min(depth, self._slots), len(self._rows[row].ids))

    # --- anchors ----------------------------------------------------------------------------------

    def _learn(self, row: int, start: int, hidden: Tensor, ids: TokenIds) -> None:
        """Takes in new anchors; of a new sequence, also what another row has computed of its beginning."""
        if start == 0:
            self._rows[row] = self._taken_over(row, hidden[0], ids)
        mine = self._rows[row]
        mine.ids = token_array(np.concatenate([mine.ids[:start], ids]))
        self._storage.hidden[row, start : len(mine.ids)] = hidden

    def _taken_over(self, row: int, first: Tensor, ids: TokenIds) -> Anchors:
        """Returns a row that begins as the one most like it, whose keys it copies; `first` is its state."""
        donors = [
            it
            for it in self._rows
            if it != row and torch.allclose(self._storage.hidden[it, 0], first, rtol=0.01)
        ]
        best = max(donors, key=lambda it: common_prefix(self._rows[it].ids, ids), default=row)
        taken = Anchors()
        if best == row:
            return taken
        shared = common_prefix(self._rows[best].ids, ids)
        for depth, count in self._rows[best].done.items():
            # the newest anchor is computed in any case
            taken.done[depth] = max(0, min(count, shared + 1 - depth, len(ids) - 1))
        self._storage.view(row, 0, shared).fill([self._storage.view(best, 0, shared)])
        return taken

    def _prefill(self, row: int, depth: int) -> None:
        """Computes a row's anchors but for a few up to `depth`, where they are many."""
        mine = self._rows[row]
        start, end = mine.first(depth), len(mine.ids) - depth
        if end - start < _FEW:
            return
        anchors = torch.arange(start, end, device=self._storage.hidden.device)
        nobody = anchors[:0]
        decoding = DecodeRows(own=self._storage, shared=nobody, trunks=[], positions=nobody, row=nobody)
        piece = SpanChunk(span=self._storage.view(row, 0, end), start=start, end=end)
        states = self._storage.hidden[row, start:end]
        for at in range(1, depth + 1):
            states = self._heads.step(
                depth=at,
                hidden=states,
                token_ids=self._tensor(mine.ids[start + at - 1 : end + at - 1]),
                positions=anchors + (at - 1),
                layout=_Slot(StepLayout(decoding=decoding, chunks=[piece]), at - 1),
            ).carried
        mine.finish(depth, end)

    # --- the heads --------------------------------------------------------------------------------

    def _draft(
        self, chains: Chains, head: Callable[[Tensor], Tensor], draw: Callable[[Tensor], Tensor]
    ) -> None:
        """Drafts depth by depth: over anchors where a depth has a slot, from the newest one on where not."""
        mine = [self._rows[int(row)] for row in chains.rows]
        ends = np.array([len(row.ids) for row in mine])
        slotted = np.minimum(chains.depths, self._slots)
        firsts = np.array([row.first(int(depth)) for row, depth in zip(mine, slotted, strict=True)])
        carried = torch.cat(
            [
                self._storage.hidden[row, first:end]
                for row, first, end in zip(chains.rows, firsts, ends, strict=True)
            ]
        )
        for depth in range(1, int(chains.depths.max()) + 1):
            going, counts = chains.going(depth), ends - firsts
            if depth > 1:
                on = chains.going_on(depth).repeat(counts[chains.going(depth - 1)])
                carried = carried[self._tensor(on.nonzero()[0])]
            if depth == self._slots + 1:
                carried = carried[self._tensor(counts[going].cumsum() - 1)]
                firsts, counts = ends - 1, np.ones_like(ends)
            step = self._run(
                depth,
                carried,
                chains.newest(depth)
                if depth > self._slots
                else self._tensor(chains.read(depth, [row.ids for row in mine], firsts)),
                rows=chains.rows[going],
                first=firsts[going],
                counts=counts[going],
            )
            carried = step.carried
            chains.add(draw(head(step.hidden[self._tensor(counts[going].cumsum() - 1)])))

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
        """Runs one depth over `counts` anchors from `first` on of each of `rows`, row by row."""
        slot, device = self._heads.slot(depth), hidden.device
        positions, at, grid = Grid.of(self._tensor(first + depth - 1), self._tensor(counts))
        unseen, layers = None, self._heads.layout.layers
        # a layer that is used again does so every so many tokens, and the places in between stay empty
        if depth > self._slots and layers > 1:
            behind = torch.arange(self._storage.capacity, device=device) - self._tensor(first).unsqueeze(1)
            unseen = (behind > 0) & (behind % layers != 0)
        decoding = DecodeRows(
            own=self._storage,
            shared=torch.full((len(rows),), slot, device=device),  # the slot's first position
            trunks=[],
            positions=positions,
            row=at,
            grid=grid,
            numbers=None if _are_first(rows) else self._tensor(rows),
            unseen=unseen,
        )
        return self._heads.step(
            depth=depth,
            hidden=hidden,
            token_ids=token_ids,
            positions=positions,
            layout=_Slot(StepLayout(decoding=decoding, chunks=[]), slot),
        )

    def _tensor(self, array: npt.NDArray[np.int64] | TokenIds) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._storage.hidden.device)


def _are_first(rows: npt.NDArray[np.int64]) -> bool:
    return bool((rows == np.arange(len(rows))).all())


class _Slot(AttentionLayout):
    """One slot of a storage, whatever number the layer has in the model that it was copied from."""

    def __init__(self, layout: AttentionLayout, slot: int) -> None:
        self._layout, self._slot = layout, slot

    def attend(self, call: AttentionCall) -> Tensor:
        return self._layout.attend(replace(call, layer=self._slot))


@torch.no_grad()
def draft_cache(heads: MtpHeads, *, deepest: int) -> CacheShape:
    """Returns what drafts to `deepest` keep of one token: keys and values by slot, and the policy's state."""
    weight = heads.host.embedding_weight
    probe, place = ShapeProbe(), torch.zeros(1, dtype=torch.long, device=weight.device)
    state = torch.zeros(1, heads.host.width, dtype=weight.dtype, device=weight.device)
    heads.step(depth=1, hidden=state, token_ids=place, positions=place, layout=probe)
    (layer,) = probe.layers.values()
    return CacheShape(
        layers=(layer,) * heads.layout.slots(deepest),
        hidden_dim=heads.host.width,
        dtype=weight.dtype,
        device=weight.device,
    )
