"""Finds what decoding sequences have in common: which trunks are worth reading in one place.

    sequence  =  a stretch of one trunk, a stretch of a deeper trunk, ..., tokens of its own

A trunk saves reading its keys and values once for every sequence but one, in every step and layer; it costs
a few calls. So it is made when what it saves outweighs them, and only from what is alike token by token:
how sequences came about (siblings of a prompt, forks of a rollout, problems behind the same examples) does
not matter, and neither does what became of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from turnpoint.engine.prefix_cache import common_prefix
from turnpoint.engine.span import Span, cut
from turnpoint.types import TokenIds


@dataclass(slots=True, kw_only=True, eq=False)
class Trunk:
    """Tokens `start` to the end of the path `ids`; a row reads at most one trunk of each depth."""

    ids: TokenIds
    start: int
    depth: int
    slot: int = -1  # in the storage of its depth, once it has a place there

    def __len__(self) -> int:
        return len(self.ids) - self.start


Stretch: TypeAlias = tuple[Trunk, int]  # a trunk, and the position in the sequence up to which it is read


@dataclass(slots=True, kw_only=True, eq=False)
class Path:
    """A sequence that looks for company."""

    ids: TokenIds  # that it could read from trunks
    spans: list[Span] | None  # their keys and values, if a trunk can be made from it
    chain: list[Stretch] = field(default_factory=list[Stretch])

    @property
    def shared(self) -> int:
        """How many leading tokens trunks give it."""
        return self.chain[-1][1] if self.chain else 0


def worth_reading(*, start: int, end: int, reach: int) -> bool:
    """Says whether a sequence that agrees with tokens `start` to `reach` should read a trunk up to `end`.

    It computes over the whole trunk, what it does not see included, at a third of the cost of reading.
    """
    return 2 * (reach - start) >= end - start and reach > start


def best_end(reaches: npt.NDArray[np.int64], *, start: int) -> tuple[int, int]:
    """Returns where a trunk from `start` should end, and how many tokens a step then reads less.

    `reaches` [n]: up to where each sequence agrees with the path that the trunk would be taken from.
    """
    lengths = reaches - start
    best, most = start, 0
    for length in np.unique(lengths[lengths > 0]):
        joined = lengths[2 * lengths >= length]
        saved = int(np.minimum(joined, length).sum() - length)
        if saved > most:
            best, most = start + int(length), saved
    return best, most


def join_known(path: Path, levels: Sequence[Iterable[Trunk]]) -> None:
    """Lets `path` read the trunks there are, as deep as they agree with it."""
    for trunks in levels:
        start = path.shared
        reach, best = start, None
        for trunk in trunks:
            agreed = common_prefix(trunk.ids, path.ids) if trunk.start == start else 0
            if agreed > reach and worth_reading(start=start, end=len(trunk.ids), reach=agreed):
                reach, best = agreed, trunk
        if best is None:
            return
        path.chain.append((best, reach))


def share(paths: Sequence[Path], *, pays: Callable[[int], bool]) -> list[tuple[Trunk, list[Span]]]:
    """Extends the chains of `paths` by new trunks; returns those, each with the spans of its tokens.

    `pays` says whether saving so many tokens a step is worth a trunk.
    """
    made: list[tuple[Trunk, list[Span]]] = []
    groups = _by_chain(paths)
    while groups:
        group = groups.pop()
        for leader in _leaders(group):
            reaches = np.array([common_prefix(path.ids, leader.ids) for path in group])
            start = leader.shared
            end, saved = best_end(reaches, start=start)
            if not pays(saved):
                continue
            trunk = Trunk(ids=leader.ids[:end], start=start, depth=len(leader.chain))
            made.append((trunk, cut(leader.spans or [], start, end)))
            for path, reach in zip(group, np.minimum(reaches, end).tolist(), strict=True):
                if worth_reading(start=start, end=end, reach=reach):
                    path.chain.append((trunk, reach))
            groups += _by_chain(group)
            break
    return made


def _by_chain(paths: Sequence[Path]) -> list[list[Path]]:
    """Returns the paths that read the same stretches, together; whoever is alone has nobody to share with."""
    groups: dict[tuple[tuple[int, int], ...], list[Path]] = {}
    for path in paths:
        if path.shared < len(path.ids):
            groups.setdefault(tuple((id(trunk), end) for trunk, end in path.chain), []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def _leaders(group: Sequence[Path]) -> list[Path]:
    """Returns the paths a trunk can be taken from, longest first, of equal ones the first."""
    different = {path.ids.tobytes(): path for path in reversed(group) if path.spans is not None}
    return sorted(different.values(), key=lambda path: -len(path.ids))
