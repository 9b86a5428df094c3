"""The sequences that decode: what each reads from trunks it shares with others, and its own tokens.

Sequence i of `sequences` lives in row i. Before a step all of its tokens but the newest have keys and
values; once the network ran, all of them. The last token of a prefix is always the row's own, since the
next draw needs its hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.engine.layout import DecodeRows, Grid
from turnpoint.engine.rows import Rows
from turnpoint.engine.sequence import Generation
from turnpoint.engine.sharing import Path, Stretch, Trunk, join_known, share
from turnpoint.engine.span import CacheShape, Span, cut, empty_span
from turnpoint.engine.trunks import Level, Reading

# What attending to a trunk costs in calls, as bytes that are read in the same time.
CALL_BYTES = 1 << 19


class Batch:
    """Rows of decoding sequences, joined and left between steps."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._own = Rows(shape)
        self._drafted = 0  # tokens of this step behind a row's newest: theirs to keep until they are verified
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.sequences: list[Generation] = []
        self._paths: list[Path] = []  # of each row
        self._levels: list[Level] = []  # of trunks
        self._readings: tuple[int, list[Reading]] | None = None  # of how many rows; None: to be made anew
        self._own.clear()

    @property
    def depths(self) -> list[int]:
        """How many trunks each row reads."""
        return [len(path.chain) for path in self._paths]

    @property
    def stored_tokens(self) -> int:
        """For how many tokens there is room."""
        return self._own.tokens + sum(level.block.tokens for level in self._levels)

    def join(self, joining: Sequence[tuple[Generation, list[Span]]]) -> None:
        """Gives each sequence a row; its spans hold its whole prefix."""
        self.fit()
        new = [Path(ids=sequence.prefix[:-1], spans=spans) for sequence, spans in joining]
        self._find_trunks(new)
        first = len(self.sequences)
        self.sequences += [sequence for sequence, _ in joining]
        self._paths += new
        self._readings = None
        self.fit()
        for row, (sequence, spans) in enumerate(joining, start=first):
            shared, end = self._paths[row].shared, len(sequence.prefix)
            self._own.view(row, 0, end - shared).fill(cut(spans, shared, end))
            self._paths[row].spans = None

    def _find_trunks(self, new: Sequence[Path]) -> None:
        """Lets new paths read what they share with each other and with rows that shared nothing so far."""
        for path in new:
            join_known(path, [level.trunks for level in self._levels])
        alone = [row for row, path in enumerate(self._paths) if not path.chain]
        made = share([*(self._paths[row] for row in alone), *new], pays=self._pays)
        for depth in sorted({trunk.depth for trunk, _ in made}):
            self._levels += [Level(self._shape)] if depth == len(self._levels) else []
            self._levels[depth].add([it for it in made if it[0].depth == depth])
        for row in alone:
            if shared := self._paths[row].shared:
                kept = self.sequences[row].length + self._drafted - shared
                self._own.view(row, 0, kept).fill([self._own.view(row, shared, shared + kept).clone()])

    def _pays(self, saved: int) -> bool:
        return saved * self._shape.attended_bytes >= CALL_BYTES

    def leave(self, row: int) -> None:
        """Frees a row; the last one takes its place."""
        path, last = self._paths[row], len(self.sequences) - 1
        if row < last:
            self.sequences[row], self._paths[row] = self.sequences[last], self._paths[last]
            kept = self.sequences[row].length - 1 - self._paths[row].shared  # the newest has no keys yet
            self._own.view(row, 0, kept).fill([self._own.view(last, 0, kept)])
        self.sequences.pop()
        self._paths.pop()
        self._readings = None
        self._drop_unread([trunk for trunk, _ in path.chain])

    def _drop_unread(self, left: Sequence[Trunk]) -> None:
        read = {trunk for path in self._paths for trunk, _ in path.chain}
        for trunk in left:
            if trunk not in read:
                self._levels[trunk.depth].remove(trunk)
        while self._levels and not self._levels[-1].trunks:
            self._levels.pop()

    def fit(self, drafted: int | None = None) -> None:
        """Makes room for one more token in every row, and for `drafted` ones behind it.

        None: as many as the last time, since sequences join between a pass over drafts and their
        verification.
        """
        self._drafted = self._drafted if drafted is None else drafted
        if self.sequences:
            own = int((self._lengths() - self._shared()).max())
            self._own.fit(len(self.sequences), own + self._drafted)

    def rows(self, count: int, drafted: npt.NDArray[np.int64] | None = None) -> DecodeRows:
        """Returns where the first `count` rows, those that decode in this step, attend.

        `drafted` [count]: how many tokens follow the newest one of each; None: nowhere any.
        """
        if self._readings is None or self._readings[0] != count:
            levels = [
                level.reading([_at(path, depth) for path in self._paths[:count]], self._shape.device)
                for depth, level in enumerate(self._levels)
            ]
            self._readings = count, [reading for reading in levels if reading is not None]
        positions, grid = self._tensor(self._lengths()[:count] - 1), None
        row = torch.arange(count, device=positions.device)
        if drafted is not None:
            positions, row, grid = Grid.of(positions, self._tensor(1 + drafted))
        return DecodeRows(
            own=self._own,
            shared=self._tensor(self._shared()[:count]),
            trunks=self._readings[1],
            positions=positions,
            row=row,
            grid=grid,
        )

    def hidden(self, first: int = 0) -> Tensor:
        """Returns the hidden state of the newest token of every row from `first` on, [rows, M]."""
        newest = self._tensor(self._lengths() - 1 - self._shared())[first:]
        return self._own.hidden[torch.arange(len(newest), device=newest.device) + first, newest]

    def keep_hidden(self, hidden: Tensor, rows: DecodeRows) -> None:
        """Stores the hidden states, [T, M], of the tokens that went through the network."""
        self._own.hidden[rows.row, rows.place] = hidden

    def states(self, row: int, start: int) -> Tensor:
        """Returns the hidden states of a row's tokens from `start` to the one before the newest, [n, M]."""
        path, end = self._paths[row], self.sequences[row].length - 1
        own = self._own.hidden[row, max(start - path.shared, 0) : end - path.shared]
        if start >= path.shared:
            return own
        from_trunks = [
            self._levels[trunk.depth].view(trunk, max(start, trunk.start), stop).hidden
            for trunk, stop in path.chain
            if start < stop
        ]
        return torch.cat([*from_trunks, own])

    def take(self, row: int, start: int, end: int) -> Span:
        """Returns tokens `start` to `end` of a row's sequence; a view if they are its own."""
        path = self._paths[row]
        own = self._own.view(row, max(start - path.shared, 0), end - path.shared)
        if start >= path.shared:
            return own
        from_trunks: list[Span] = []
        for trunk, stop in path.chain:
            if start < stop:
                from_trunks.append(
                    self._levels[trunk.depth].view(trunk, max(start, trunk.start), min(end, stop))
                )
        span = empty_span(self._shape, end - start)
        span.fill([*from_trunks, own])
        return span

    def _lengths(self) -> npt.NDArray[np.int64]:
        return np.array([sequence.length for sequence in self.sequences], dtype=np.int64)

    def _shared(self) -> npt.NDArray[np.int64]:
        return np.array([path.shared for path in self._paths], dtype=np.int64)

    def _tensor(self, array: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._shape.device)


def _at(path: Path, depth: int) -> Stretch | None:
    return path.chain[depth] if depth < len(path.chain) else None
