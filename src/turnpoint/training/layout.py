"""Attention over packed trees: every run of tokens sees its ancestors and, causally, itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnpoint.models.attention import AttentionCall, AttentionLayout, masked_attention, visible
from turnpoint.training.blocks import Block, block_attention

DENSE_TOKENS = 256  # of a tree that is computed as one masked block


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive tokens of a packed row that come from one segment, and what lies before them.

    A prompt in row places 0-3 and a fork that leaves it after two tokens:

    >>> Run(start=4, stop=9, ancestors=((0, 2),)).depth
    2
    """

    start: int
    stop: int  # exclusive
    ancestors: tuple[tuple[int, int], ...]  # [start, stop) row ranges of the path before it, oldest first

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def depth(self) -> int:
        """How many tokens of the path come before this run: the position of its first token."""
        return sum(stop - start for start, stop in self.ancestors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Runs whose queries are computed together: rows [start, stop), against the keys in `spans`."""

    start: int
    stop: int
    spans: tuple[tuple[int, int], ...]
    query_positions: Tensor  # [Q]
    key_positions: Tensor  # [K]
    related: Tensor | None  # [Q, K] whether the key lies on the query's path; None: all do

    def mask(self, window: int | None, device: torch.device) -> Tensor:
        """Returns which keys each query sees, [Q, K]."""
        seen = visible(self.query_positions, self.key_positions, window)
        return (seen if self.related is None else seen & self.related).to(device)


class TreeLayout(AttentionLayout):
    """Packed trees without a cache; `runs` cover the row from left to right.

    Each run's queries meet the keys of its own path only, so siblings and other trees cost nothing, and no
    mask of the whole row exists. A tree of at most `dense_tokens` is computed as one masked block instead:
    there, the calls for its many short runs would cost more than the scores they save. Masks are built
    once per window and shared by all layers; the scores of one block exist at once in each layer.
    With a softcap or sinks attention is written out and differentiated by autograd.
    """

    def __init__(self, runs: Sequence[Run], *, dense_tokens: int = DENSE_TOKENS) -> None:
        self._blocks = [
            block
            for tree in _trees(runs)
            for block in (
                [_dense(tree)]
                if tree[-1].stop - tree[0].start <= dense_tokens
                else [_along_path(run) for run in tree]
            )
        ]
        borders = {place for block in self._blocks for span in block.spans for place in span}
        cuts = sorted({0, *borders})
        self._lengths = [block.stop - block.start for block in self._blocks]
        self._pieces = [stop - start for start, stop in itertools.pairwise(cuts)]
        self._paths = [_piece_indices(block.spans, cuts) for block in self._blocks]
        self._masks: dict[int | None, list[Tensor]] = {}
        self._bare: dict[int | None, list[Block]] = {}

    @property
    def scores(self) -> int:
        """How many scores each query head computes in each layer: queries times keys, over all blocks."""
        return sum((block.stop - block.start) * len(block.key_positions) for block in self._blocks)

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the attention output, [H, T, D]."""
        if call.window not in self._masks:
            device = call.query.device
            self._masks[call.window] = [block.mask(call.window, device) for block in self._blocks]
            self._bare[call.window] = [
                _bare(block, mask) for block, mask in zip(self._blocks, self._masks[call.window], strict=True)
            ]
        if call.softcap is not None or call.sinks is not None:
            return self._written_out(call, self._masks[call.window])
        return block_attention(
            call.query, call.key, call.value, scaling=call.scaling, blocks=self._bare[call.window]
        )

    def _written_out(self, call: AttentionCall, masks: Sequence[Tensor]) -> Tensor:
        # split and cat, because their backward writes each gradient once; slices would each fill a row
        keys = torch.split(call.key, self._pieces, dim=1)
        values = torch.split(call.value, self._pieces, dim=1)
        queries = torch.split(call.query, self._lengths, dim=1)
        outputs: list[Tensor] = []
        for query, path, mask in zip(queries, self._paths, masks, strict=True):
            key = torch.cat([keys[index] for index in path], dim=1)
            value = torch.cat([values[index] for index in path], dim=1)
            outputs.append(masked_attention(replace(call, query=query), key, value, mask))
        return torch.cat(outputs, dim=1)


def _trees(runs: Sequence[Run]) -> list[list[Run]]:
    """Returns the runs tree by tree: a tree ends where nothing after it reaches back."""
    firsts = [min([run.start, *(start for start, _ in run.ancestors)]) for run in runs]
    reach = [*itertools.accumulate(reversed(firsts), min)][::-1]
    trees: list[list[Run]] = []
    for run, lowest in zip(runs, reach, strict=True):
        if lowest >= run.start:
            trees.append([])
        trees[-1].append(run)
    return trees


def _along_path(run: Run) -> _Block:
    end = run.depth + len(run)
    return _Block(
        start=run.start,
        stop=run.stop,
        spans=(*run.ancestors, (run.start, run.stop)),
        query_positions=torch.arange(run.depth, end),
        key_positions=torch.arange(end),
        related=None,
    )


def _dense(tree: Sequence[Run]) -> _Block:
    first, stop = tree[0].start, tree[-1].stop
    related = torch.zeros(stop - first, stop - first, dtype=torch.bool)
    for run in tree:
        for start, end in (*run.ancestors, (run.start, run.stop)):
            related[run.start - first : run.stop - first, start - first : end - first] = True
    positions = torch.cat([torch.arange(run.depth, run.depth + len(run)) for run in tree])
    return _Block(
        start=first,
        stop=stop,
        spans=((first, stop),),
        query_positions=positions,
        key_positions=positions,
        related=related,
    )


def _bare(block: _Block, mask: Tensor) -> Block:
    """Returns what `block_attention` needs of a block: only the last columns of most masks hide anything."""
    hidden = ~mask
    some = hidden.any(dim=0).nonzero()
    first = int(some[0]) if len(some) else mask.shape[1]
    return Block(start=block.start, stop=block.stop, spans=_adjoined(block.spans), hidden=hidden[:, first:])


def _adjoined(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Returns `spans` with neighbours as one: fewer copies.

    >>> _adjoined([(0, 3), (3, 5), (9, 12)])
    ((0, 5), (9, 12))
    """
    joined: list[tuple[int, int]] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return tuple(joined)


def _piece_indices(spans: Sequence[tuple[int, int]], cuts: Sequence[int]) -> list[int]:
    at = {place: index for index, place in enumerate(cuts)}
    return [index for start, stop in spans for index in range(at[start], at[stop])]
