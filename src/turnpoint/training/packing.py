"""A step's groups as packed trees: each token once through the network, each sampled token trained once.

Invariants, tested in tests/laws/:
  1. every POLICY token with a weight, of a valid member, trains in exactly one tree, exactly once;
  2. loss and gradient do not depend on the order of groups or siblings, on how the step is cut into
     trees, or on where segments are cut;
  3. a token without weight, or of an invalid member, is as if it had never been sampled;
  4. a rollout whose advantages are all 0 and that no teacher judges counts in every denominator and is
     not packed: its gradient is exactly 0, so it costs nothing, unless a loss says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from turnpoint.losses.reductions import sequence_weights
from turnpoint.training.row import PackedTree, Share, pack_row
from turnpoint.training.selection import kept_lengths, trained_rollouts
from turnpoint.types import Group, SegmentCredit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedStep:
    """All that one optimiser step trains on; the losses of its trees add up to the loss of the step."""

    trees: tuple[PackedTree, ...]
    denominator: float  # global over the step; 0 when nothing trains
    trained_rollouts: int
    left_out_rollouts: int  # invalid, or without a weighted token
    trained_tokens: int
    packed_tokens: int  # through the network, trunks that cuts repeat included
    row_tokens: int  # what one row per rollout would put through it, padding not counted


def together(_: Group) -> str:
    """Returns the one name of all: no whole law is asked."""
    return ""


def pack_step(
    items: Sequence[tuple[Group, Sequence[SegmentCredit]]],
    *,
    max_tokens: int,
    aggregation: str,
    max_new_tokens: int,
    every_rollout: bool = False,
    teacher: Callable[[Group], str] = together,
    device: torch.device | str = "cpu",
) -> PackedStep:
    """Returns groups and their credits as trees of at most `max_tokens` tokens each.

    A larger group is cut between members into trees that repeat the trunk they share; a member whose
    path alone is larger makes a tree of its own size. `aggregation` and `max_new_tokens` are those of
    `turnpoint.losses.reductions.sequence_weights`, applied to the rollouts that train. `every_rollout`
    packs those of invariant 4 as well: for a loss that moves tokens without advantage, such as a KL term.
    Groups share a row only with others of the same `teacher`, by whose names rows are ordered: a teacher
    whose whole law is asked runs over its own rows and no other's.

    Raises ValueError for a credit that is missing, doubled, empty, of the wrong length or of a segment
    that is not POLICY, and for a trained token that nothing comes before.
    """
    groups = [trained_rollouts(group, credits) for group, credits in items]
    rollouts = [rollout for group in groups for rollout in group]
    factors, denominator = sequence_weights(
        lengths=[rollout.length for rollout in rollouts], aggregation=aggregation, max_tokens=max_new_tokens
    )
    shares = (
        Share(rollout=rollout, sequence_id=index, factor=factor)
        for index, (rollout, factor) in enumerate(zip(rollouts, factors, strict=True))
    )
    moving = (
        [share for share in islice(shares, len(group)) if every_rollout or share.rollout.moves]
        for group in groups
    )
    subtrees: dict[str, list[list[Share]]] = {}
    for (group, _), some in zip(items, moving, strict=True):
        subtrees.setdefault(teacher(group), []).extend(_cut(some, max_tokens))
    trees = tuple(
        pack_row(row, device=device, teacher=name)
        for name, parts in sorted(subtrees.items())
        for row in _fill(parts, max_tokens)
    )
    return PackedStep(
        trees=trees,
        denominator=denominator,
        trained_rollouts=len(rollouts),
        left_out_rollouts=sum(len(group.members) for group, _ in items) - len(rollouts),
        trained_tokens=sum(rollout.length for rollout in rollouts),
        packed_tokens=sum(len(tree.token_ids) for tree in trees),
        row_tokens=sum(sum(kept_lengths(rollout.tree, [rollout]).values()) for rollout in rollouts),
    )


def _cut(shares: Iterable[Share], max_tokens: int) -> Iterator[list[Share]]:
    """Yields the members of one group in as few runs as the budget allows, each the members of one tree."""
    part: list[Share] = []
    for share in shares:
        if part and _size([*part, share]) > max_tokens:
            yield part
            part = []
        part.append(share)
    if part:
        yield part


def _fill(subtrees: Iterable[list[Share]], max_tokens: int) -> list[list[list[Share]]]:
    """Returns `subtrees` in rows of at most `max_tokens`, first fit, largest first."""
    rows: list[list[list[Share]]] = []
    free: list[int] = []
    for part in sorted(subtrees, key=_size, reverse=True):
        size = _size(part)
        fits = next((row for row, room in enumerate(free) if size <= room), None)
        if fits is None:
            rows.append([part])
            free.append(max_tokens - size)
        else:
            rows[fits].append(part)
            free[fits] -= size
    return rows


def _size(part: Sequence[Share]) -> int:
    return sum(kept_lengths(part[0].rollout.tree, [share.rollout for share in part]).values())
