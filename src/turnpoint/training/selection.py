"""Which tokens of a group train, and which others they need before them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnpoint.types import Author, Group, SegmentCredit, TokenTree


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedSegment:
    """The tokens of one POLICY segment that train."""

    credit: SegmentCredit
    offsets: npt.NDArray[np.int64]  # indices among the segment's tokens, rising, at least one

    @property
    def moves(self) -> bool:
        """Whether a teacher speaks or some advantage is not 0."""
        advantages = self.credit.advantages
        return self.credit.teacher is not None or (
            advantages is not None and bool(advantages[self.offsets].any())
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedRollout:
    """What one member trains: the segments it generated, without tokens of weight 0."""

    tree: TokenTree
    leaf: int
    segments: tuple[TrainedSegment, ...]  # at least one

    @property
    def length(self) -> int:
        """How many tokens train."""
        return sum(len(segment.offsets) for segment in self.segments)

    @property
    def moves(self) -> bool:
        """Whether its loss can have a gradient at all."""
        return any(segment.moves for segment in self.segments)


def trained_rollouts(group: Group, credits: Sequence[SegmentCredit]) -> list[TrainedRollout]:
    """Returns one entry per valid member with a weighted token, in depth-first order of their leaves.

    Raises ValueError for a credit that is doubled, of the wrong length, not of a POLICY segment, without
    any stream, or missing for a valid member.
    """
    by_segment = _by_segment(group, credits)
    rollouts: list[TrainedRollout] = []
    for member in group.members:
        if not member.verdict.valid:
            continue
        segments = [_trained(group, by_segment, segment) for segment in member.segments]
        if kept := tuple(segment for segment in segments if len(segment.offsets)):
            rollouts.append(TrainedRollout(tree=group.tree, leaf=member.leaf, segments=kept))
    # neighbours then share the longest trunks, which is what a cut between them has to repeat
    return sorted(rollouts, key=lambda it: [piece.segment.id for piece in it.tree.path(it.leaf)])


def kept_lengths(tree: TokenTree, rollouts: Iterable[TrainedRollout]) -> dict[int, int]:
    """Returns how many tokens of each segment `rollouts` of `tree` need as inputs, by segment id.

    The last trained token is predicted and not an input; a segment not listed is on no needed path.
    """
    kept = {it.credit.segment: int(it.offsets[-1]) for rollout in rollouts for it in rollout.segments}
    for segment in reversed(tree.segments):  # children come before their parents
        if segment.id in kept and segment.parent is not None:
            kept[segment.parent] = max(kept.get(segment.parent, 0), segment.parent_length)
    return kept


def _by_segment(group: Group, credits: Sequence[SegmentCredit]) -> Mapping[int, SegmentCredit]:
    known: dict[int, SegmentCredit] = {}
    for credit in credits:
        where = f"group {group.id}: credit of segment {credit.segment}"
        if credit.segment in known:
            raise ValueError(f"{where} is given twice")
        if not 0 <= credit.segment < len(group.tree.segments):
            raise ValueError(f"{where}: the tree has {len(group.tree.segments)} segments")
        segment = group.tree.segments[credit.segment]
        if segment.author is not Author.POLICY:
            raise ValueError(f"{where}: only POLICY segments train, this is {segment.author.name}")
        if len(credit.weights) != len(segment):
            raise ValueError(f"{where}: {len(credit.weights)} weights for {len(segment)} tokens")
        known[credit.segment] = credit
    return known


def _trained(group: Group, credits: Mapping[int, SegmentCredit], segment: int) -> TrainedSegment:
    if segment not in credits:
        raise ValueError(f"group {group.id}: no credit for segment {segment} of a valid member")
    credit = credits[segment]
    offsets = np.flatnonzero(credit.weights)
    if len(offsets) and credit.advantages is None and credit.teacher is None:
        raise ValueError(
            f"group {group.id}: credit of segment {segment} has neither advantages nor a teacher; "
            f"give it weights 0 to leave it out"
        )
    return TrainedSegment(credit=credit, offsets=offsets)
