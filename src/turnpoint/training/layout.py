"""Attention over packed trees: every run of tokens sees its ancestors and, causally, itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnpoint.models.attention import AttentionCall, AttentionLayout, masked_attention, visible


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


class TreeLayout(AttentionLayout):
    """Packed trees without a cache; `runs` cover the row from left to right.

    Each run's queries meet the keys of its own path only, so siblings and other trees cost nothing: no
    score between them is computed, and no mask of the whole row exists. Masks are built once per window
    and shared by all layers. Scores of one run, [H, run, path], do exist at once in each layer.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._lengths = [len(run) for run in runs]
        borders = {0, *(place for run in runs for span in (_own(run), *run.ancestors) for place in span)}
        cuts = sorted(borders)
        self._pieces = [stop - start for start, stop in itertools.pairwise(cuts)]
        self._paths = [_piece_indices(run, cuts) for run in runs]
        self._ends = [run.depth + len(run) for run in runs]
        self._masks: dict[int | None, list[Tensor]] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the attention output, [H, T, D]."""
        # split and cat, because their backward writes each gradient once; slices would each fill a row
        keys = torch.split(call.key, self._pieces, dim=1)
        values = torch.split(call.value, self._pieces, dim=1)
        queries = torch.split(call.query, self._lengths, dim=1)
        outputs: list[Tensor] = []
        for query, path, mask in zip(queries, self._paths, self._masks_for(call), strict=True):
            key = torch.cat([keys[index] for index in path], dim=1)
            value = torch.cat([values[index] for index in path], dim=1)
            outputs.append(masked_attention(replace(call, query=query), key, value, mask))
        return torch.cat(outputs, dim=1)

    def _masks_for(self, call: AttentionCall) -> list[Tensor]:
        if call.window not in self._masks:
            device = call.query.device
            self._masks[call.window] = [
                visible(
                    torch.arange(end - length, end, device=device),
                    torch.arange(end, device=device),
                    call.window,
                )
                for length, end in zip(self._lengths, self._ends, strict=True)
            ]
        return self._masks[call.window]


def _own(run: Run) -> tuple[int, int]:
    return run.start, run.stop


def _piece_indices(run: Run, cuts: Sequence[int]) -> list[int]:
    at = {place: index for index, place in enumerate(cuts)}
    spans = (*run.ancestors, _own(run))
    return [index for start, stop in spans for index in range(at[start], at[stop])]
