"""What the length of a rollout costs, decided in credit: the records keep the verifier's reward.

SoftPenalty    reward + penalty(length), before the baseline (DAPO, arXiv 2503.14476, equation 13):
               0                                      length <= max - buffer
               - factor (length - (max - buffer)) / buffer         in between
               - factor                               length >= max
MaskTruncated  a truncated rollout is as if it had never been sampled (DAPO's overlong filtering)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.types import Author, FinishReason, Group, Member


def overlong_penalty(length: int, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> float:
    """Returns what a completion of `length` tokens adds to its reward, in [-factor, 0].

    `max_tokens` is the longest a completion can be, and the last `buffer_tokens` of it cost. One that the
    limit truncated has the length `max_tokens`; a longer one (several turns) costs no more.

    >>> [overlong_penalty(length, max_tokens=8, buffer_tokens=4) for length in (4, 5, 8)]
    [0.0, -0.25, -1.0]

    Raises ValueError for a negative length, a buffer outside 1..max_tokens, or a factor that is not
    positive and finite.
    """
    if length < 0:
        raise ValueError(f"a completion has no {length} tokens")
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(f"buffer_tokens = {buffer_tokens} must lie in 1..max_tokens = {max_tokens}")
    if not 0 < factor < math.inf:
        raise ValueError(f"factor = {factor} is the reward lost at the limit; it must be positive and finite")
    inside = min(max(length - (max_tokens - buffer_tokens), 0), buffer_tokens)
    return -factor * (inside / buffer_tokens) if inside else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftPenalty:
    """Length costs reward before the limit is reached: the arguments of `overlong_penalty`.

    Raises ValueError as that does.
    """

    max_tokens: int
    buffer_tokens: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        self.of(0)

    def of(self, length: int) -> float:
        """Returns what a completion of `length` tokens adds to its reward."""
        return overlong_penalty(
            length, max_tokens=self.max_tokens, buffer_tokens=self.buffer_tokens, factor=self.factor
        )


@dataclass(frozen=True, slots=True)
class MaskTruncated:
    """A rollout that ran into a limit trains nothing and is in no baseline."""


Overlong: TypeAlias = SoftPenalty | MaskTruncated


def completion_length(group: Group, member: Member) -> int:
    """Returns how many policy tokens lie on the member's path: for a branch, the root's part included."""
    path = group.tree.path(member.leaf)
    return sum(piece.length for piece in path if piece.segment.author is Author.POLICY)


def is_truncated(member: Member) -> bool:
    """Whether the rollout ran into a length limit."""
    return member.finish is FinishReason.LENGTH


def counts(member: Member, overlong: Overlong | None) -> bool:
    """Whether the rollout is compared with others and trains."""
    masked = isinstance(overlong, MaskTruncated) and is_truncated(member)
    return member.verdict.valid and not masked


def reward_of(group: Group, member: Member, overlong: Overlong | None) -> float:
    """Returns what is compared: the reward and what length costs; no meaning for one that does not count."""
    reward = 0.0 if member.verdict.reward is None else member.verdict.reward
    if isinstance(overlong, SoftPenalty):
        reward += overlong.of(completion_length(group, member))
    return reward
