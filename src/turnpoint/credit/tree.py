"""Credit that knows which rollouts share a prefix: what was decided after a fork is compared there.

A root's tokens are cut at its forks p_1 < p_2 < ... into pieces 0, 1, ...; a continuation has its suffix.

sibling_leave_one_out   at a fork: the root and its continuations there; at the start: all roots
    a(m, fork) = R_m - mean of the others in that fork, 0 for one alone
    a continuation gets a(m, its fork); the token t of a root gets
    a(root, last fork at or before t, or the start) + sum over later forks p of decay^(p - t) a(root, p)

subtree_value           V = mean reward of all rollouts that pass through a piece
    piece j gets V_j - V_(j-1), piece 0 gets V_0 - mean of the group; a continuation R - V of the piece before
    its fork, which it passed through

The first is BPO's (arXiv 2607.14171: leave-one-out among siblings, carried upstream with decay 0.95 per
decision), whose text says no more; that decay counts tokens and that roots are siblings of each other is
ours. Where a root forks for no reason of its own later tokens, it is unbiased for every decay, since what
is carried upstream then has mean zero; under a rule that reads the whole root only its suffixes are. An
only root gets 0 before its first fork. The second telescopes along a path to reward minus group mean; where
N_j rollouts pass through piece j, and the whole group before the first, its expected gradient is 1 - N_j /
N_(j-1) of the unbiased one. TreeRL (arXiv 2506.11902) adds V_j - V(start) and divides by the root of a
node's leaves. Without forks the first is RLOO, the second GRPO without std.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnpoint.credit.overlong import Overlong, counts, reward_of
from turnpoint.types import BranchOrigin, Group, SegmentCredit

_Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forks:
    """The members of a group that count, by where they begin."""

    rewards: Mapping[int, float]  # by member
    places: Mapping[int, tuple[int, int]]  # continuation -> (root, position)
    roots: tuple[int, ...]  # those that begin at the prompt
    of: Mapping[int, Mapping[int, list[int]]]  # root -> position -> continuations, positions rising

    @staticmethod
    def of_group(group: Group, overlong: Overlong | None) -> _Forks:
        rewards = {
            index: reward_of(group, member, overlong)
            for index, member in enumerate(group.members)
            if counts(member, overlong)
        }
        origins = {index: group.members[index].origin for index in rewards}
        places = {  # a fork at the first token keeps nothing: another root
            index: (it.root, it.position)
            for index, it in origins.items()
            if isinstance(it, BranchOrigin) and it.position
        }
        forks: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index, (root, position) in sorted(places.items(), key=lambda it: it[1]):
            forks[root][position].append(index)
        roots = tuple(index for index in rewards if index not in places)
        return _Forks(rewards=rewards, places=places, roots=roots, of=forks)

    def positions(self, root: int) -> list[int]:
        """Where `root` forks, rising."""
        return list(self.of[root]) if root in self.of else []

    def siblings(self, root: int, position: int) -> list[int]:
        """Who shares `root` up to `position`: its continuations there and, where it counts, itself."""
        return [it for it in (root, *self.of[root][position]) if it in self.rewards]

    def value(self, root: int, start: int) -> float:
        """The mean reward of `root`, where it counts, and of what forks from it after `start`."""
        later = [it for at in self.positions(root) if at > start for it in self.of[root][at]]
        return self.mean([*([root] if root in self.rewards else []), *later])

    def mean(self, members: Sequence[int]) -> float:
        """The mean reward of `members`; 0 of none."""
        return sum(self.rewards[it] for it in members) / len(members) if members else 0.0

    def compared(self, member: int, among: Sequence[int]) -> float:
        """The reward of `member` less the mean of the others in `among`; 0 without others."""
        others = [it for it in among if it != member]
        return self.rewards[member] - self.mean(others) if others else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingAdvantage:
    """sibling_leave_one_out; `decay` per token, in [0, 1], of what is carried upstream.

    Members that do not count get weight 0 and leave the others as if they were absent. Raises ValueError for
    a decay outside.
    """

    decay: float = 0.95
    overlong: Overlong | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay {self.decay} must lie in [0, 1]")

    def credit(self, group: Group) -> list[SegmentCredit]:
        """Returns one credit per POLICY segment, in the order of members and of their segments."""
        return _credits(group, _Forks.of_group(group, self.overlong), self._values)

    def _values(self, forks: _Forks, member: int, length: int) -> _Values:
        if member in forks.places:
            return np.full(length, forks.compared(member, forks.siblings(*forks.places[member])))
        own = np.full(length, forks.compared(member, forks.roots))
        carried = np.zeros(length)
        for position in forks.positions(member):
            compared = forks.compared(member, forks.siblings(member, position))
            own[position:] = compared
            carried[:position] += compared * self.decay ** np.arange(position, 0, -1)
        return own + carried


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtreeAdvantage:
    """subtree_value: each piece gets what it changed in the mean reward of those that pass through it."""

    overlong: Overlong | None = None

    def credit(self, group: Group) -> list[SegmentCredit]:
        """Returns one credit per POLICY segment, in the order of members and of their segments."""
        return _credits(group, _Forks.of_group(group, self.overlong), self._values)

    def _values(self, forks: _Forks, member: int, length: int) -> _Values:
        if member in forks.places:
            root, position = forks.places[member]
            start = max([0, *(at for at in forks.positions(root) if at < position)])
            return np.full(length, forks.rewards[member] - forks.value(root, start))
        values = np.empty(length)
        above = forks.mean(list(forks.rewards))
        for start in (0, *forks.positions(member)):
            here = forks.value(member, start)
            values[start:] = here - above
            above = here
        return values


def _credits(
    group: Group, forks: _Forks, values: Callable[[_Forks, int, int], _Values]
) -> list[SegmentCredit]:
    """Spreads `values` of each member, one per token that it generated, over its segments."""
    credits: list[SegmentCredit] = []
    for index in range(len(group.members)):
        length, counted = group.num_generated(index), index in forks.rewards
        advantages = values(forks, index, length) if counted else np.zeros(length)
        start = 0
        for segment in group.generated(index):
            stop = start + len(segment)
            credits.append(
                SegmentCredit(
                    segment=segment.id,
                    advantages=advantages[start:stop].astype(np.float32),
                    weights=np.full(len(segment), counted, np.float32),
                )
            )
            start = stop
    return credits
