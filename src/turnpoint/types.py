"""All records of turnpoint: what flows from a task to a gradient, before any tensor exists.

**Everything is a token tree.** A group of rollouts on one task is a tree of `Segment`s, each a run of
consecutive tokens by one author. GRPO is the tree of depth one (a prompt, G leaves). Branching forks in
the middle of a segment: the child names its parent and how many of the parent's tokens come before it
(`parent_length`), so nothing is ever split or renumbered. A multi-turn episode alternates segments of
policy and environment.

Invariants, tested in tests/laws/:
  1. joining the tokens along a path gives exactly the ids the engine saw; nothing is re-tokenised;
  2. every POLICY segment has exactly one owner among the group's members;
  3. `None` means never scored or never sampled, `0.0` means scored zero;
  4. cutting a segment in two changes no loss (credit is per token).

Records are keyword-only, slotted and frozen; arrays are read-only numpy. No torch here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from turnpoint._arrays import Floats as Floats
from turnpoint._arrays import TokenIds as TokenIds
from turnpoint._arrays import float_array as float_array
from turnpoint._arrays import frozen, same
from turnpoint._arrays import token_array as token_array

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
PASSED = 0.5  # a reward above it counts as success, where success is yes or no


# --- what is asked ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message, as the template of the model will see it.

    >>> Message(role="user", content="What is 3 + 4?").role
    'user'
    """

    role: str  # "system" | "user" | "assistant"
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One verifiable problem: what the policy is shown and what the verifier knows.

    >>> Task(id="sum/0", messages=(Message(role="user", content="3 + 4 ="),), answer="7").question
    '3 + 4 ='
    """

    id: str  # unique within a dataset
    messages: tuple[Message, ...]  # ends with what the policy must answer
    answer: str  # gold, as text; never shown to the policy
    # the other columns of the row, for verifiers
    metadata: Mapping[str, Json] = field(default_factory=lambda: _NOTHING)

    @property
    def question(self) -> str:
        """The text of the last message."""
        return self.messages[-1].content


# --- the token tree -----------------------------------------------------------------------------


class Author(enum.StrEnum):
    """Who wrote the tokens of a segment."""

    PROMPT = "prompt"  # templates, tasks, anything rendered
    POLICY = "policy"  # sampled by the policy: the only tokens that train
    ENVIRONMENT = "environment"  # observations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Consecutive tokens with one author: a node of a `TokenTree`.

    A root of three sampled tokens after a prompt, and a fork that re-samples its second token:

    >>> prompt = Segment(id=0, parent=None, parent_length=0, author=Author.PROMPT, token_ids=[5, 6])
    >>> root = Segment(id=1, parent=0, parent_length=2, author=Author.POLICY, token_ids=[7, 8, 2],
    ...                logprobs=[-0.1, -0.2, -0.3], policy_version=0)
    >>> fork = Segment(id=2, parent=1, parent_length=1, author=Author.POLICY, token_ids=[9, 2],
    ...                logprobs=[-1.5, -0.1], policy_version=0)
    >>> TokenTree(segments=(prompt, root, fork)).path_ids(2).tolist()
    [5, 6, 7, 9, 2]

    Raises ValueError when POLICY comes without logprobs and version, or another author with them.
    """

    id: int
    parent: int | None  # None: this is where the tree starts
    parent_length: int  # how many of the parent's own tokens come before this segment
    author: Author
    token_ids: TokenIds  # [n]
    logprobs: Floats | None = None  # [n] nats, of the law actually sampled from; only POLICY
    policy_version: int | None = None  # weights that sampled all of it; only POLICY

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", token_array(self.token_ids))
        if self.logprobs is not None:
            object.__setattr__(self, "logprobs", float_array(self.logprobs))
        sampled = self.author is Author.POLICY
        if (self.logprobs is not None, self.policy_version is not None) != (sampled, sampled):
            raise ValueError(
                f"segment {self.id}: logprobs and policy_version belong to POLICY segments, all of "
                f"them and no other; author is {self.author.name}"
            )
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"segment {self.id}: {len(self.token_ids)} tokens but {len(self.logprobs)} logprobs"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        return same(self, other) if isinstance(other, Segment) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPiece:
    """The part of one segment that lies on a path: its first `length` tokens."""

    segment: Segment
    length: int

    @property
    def token_ids(self) -> TokenIds:
        """[length] token ids."""
        return self.segment.token_ids[: self.length]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """Segments in the order they were appended; a segment's id is its index.

    Raises ValueError for an id out of order, an unknown or later parent, a `parent_length` beyond the
    parent's tokens, or more than one start.

    >>> prompt = Segment(id=0, parent=None, parent_length=0, author=Author.PROMPT, token_ids=[1, 2])
    >>> TokenTree(segments=(prompt,)).leaves()
    [0]
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for index, segment in enumerate(self.segments):
            _check_append(self.segments, index, segment)

    def path(self, segment: int, length: int | None = None) -> list[PathPiece]:
        """Returns the pieces from the start to the first `length` tokens (default: all) of `segment`."""
        at: int | None = segment
        keep = len(self.segments[segment]) if length is None else length
        pieces: list[PathPiece] = []
        while at is not None:
            node = self.segments[at]
            pieces.append(PathPiece(segment=node, length=keep))
            at, keep = node.parent, node.parent_length
        return pieces[::-1]

    def path_ids(self, segment: int, length: int | None = None) -> TokenIds:
        """Returns the [n] token ids along `path(segment, length)`: what the engine saw."""
        parts = [piece.token_ids for piece in self.path(segment, length)]
        return frozen(np.concatenate(parts))

    def children(self, segment: int) -> list[int]:
        """Returns the ids of the segments that continue or fork `segment`, in order of appending."""
        return [node.id for node in self.segments if node.parent == segment]

    def leaves(self) -> list[int]:
        """Returns the ids of the segments without children; a root forked in its middle is no leaf."""
        parents = {node.parent for node in self.segments}
        return [node.id for node in self.segments if node.id not in parents]


def _check_append(segments: Sequence[Segment], index: int, segment: Segment) -> None:
    where = f"segment {segment.id}"
    if segment.id != index:
        raise ValueError(f"{where}: ids count from 0 without gaps, expected {index}")
    if segment.parent is None:
        if index or segment.parent_length:
            raise ValueError(f"{where}: only the first segment has no parent, with parent_length 0")
        return
    if not 0 <= segment.parent < index:
        raise ValueError(f"{where}: parent {segment.parent} does not come before it")
    available = len(segments[segment.parent])
    if not 0 <= segment.parent_length <= available:
        raise ValueError(
            f"{where}: parent_length {segment.parent_length} is beyond the {available} tokens "
            f"of parent {segment.parent}"
        )


class TreeBuilder:
    """An append-only `TokenTree` while it grows; `freeze()` gives the finished record.

    >>> tree = TreeBuilder()
    >>> prompt = tree.append(author=Author.PROMPT, token_ids=[5, 6])
    >>> root = tree.append(parent=prompt, author=Author.POLICY, token_ids=[7, 2],
    ...                    logprobs=[-0.1, -0.2], policy_version=0)
    >>> (root, tree.freeze().path_ids(root).tolist())
    (1, [5, 6, 7, 2])
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []

    def append(
        self,
        *,
        author: Author,
        token_ids: npt.ArrayLike,
        parent: int | None = None,
        parent_length: int | None = None,
        logprobs: npt.ArrayLike | None = None,
        policy_version: int | None = None,
    ) -> int:
        """Adds a segment after `parent_length` (default: all) tokens of `parent`; returns its id.

        Raises ValueError as `Segment` and `TokenTree` do; a refused segment leaves no trace.
        """
        if parent_length is None:
            known = parent is not None and 0 <= parent < len(self._segments)
            parent_length = len(self._segments[cast(int, parent)]) if known else 0
        segment = Segment(
            id=len(self._segments),
            parent=parent,
            parent_length=parent_length,
            author=author,
            token_ids=token_array(token_ids),
            logprobs=None if logprobs is None else float_array(logprobs),
            policy_version=policy_version,
        )
        _check_append(self._segments, segment.id, segment)
        self._segments.append(segment)
        return segment.id

    def __getitem__(self, segment: int) -> Segment:
        return self._segments[segment]

    def __len__(self) -> int:
        return len(self._segments)

    def freeze(self) -> TokenTree:
        """Returns the tree as it stands."""
        return TokenTree(segments=tuple(self._segments))


# --- what came of it ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verifier says about one rollout.

    `reward=None` is "never scored"; an infrastructure failure is invalid, never zero. Use
    `Verdict.scored` and `Verdict.invalid`. Raises ValueError for a reward that is no finite number, for a
    valid verdict without reward, and for an invalid one without reason.

    >>> Verdict.scored(1.0, feedback="Correct.").valid
    True
    >>> Verdict.invalid("verifier timed out after 2 s").reward is None
    True
    """

    reward: float | None
    valid: bool
    reason: str = ""  # why it is invalid; for valid ones, how it was decided
    feedback: str = ""  # what hindsight may be shown
    parts: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        if self.reward is not None and not _is_finite_number(self.reward):
            raise ValueError(f"a reward must be a finite number or None, got {self.reward!r}")
        if self.valid and self.reward is None:
            raise ValueError("a valid verdict needs a reward")
        if not self.valid and not self.reason:
            raise ValueError("an invalid verdict needs a reason")

    @property
    def passed(self) -> bool:
        """Whether it is valid and the reward above `PASSED`."""
        return self.valid and self.reward is not None and self.reward > PASSED

    @staticmethod
    def scored(
        reward: float, *, reason: str = "", feedback: str = "", parts: Mapping[str, float] = _NOTHING
    ) -> Verdict:
        """Returns a valid verdict."""
        return Verdict(reward=reward, valid=True, reason=reason, feedback=feedback, parts=parts)

    @staticmethod
    def invalid(reason: str) -> Verdict:
        """Returns a verdict that takes the rollout out of baselines, loss and metrics, with its reason."""
        return Verdict(reward=None, valid=False, reason=reason)


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class FinishReason(enum.StrEnum):
    """Why a completion ended; "truncated" is read here, never from the last token."""

    STOP = "stop"  # a stop token was sampled or a stop string appeared
    LENGTH = "length"  # the token limit or the model's context ran out


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOrigin:
    """A rollout sampled from the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchOrigin:
    """A rollout that re-samples its root from one token on."""

    root: int  # index of the root among the group's members
    position: int  # index of the re-sampled token among the root's generated tokens
    rule: str  # "hindsight" | "entropy" | ...
    score: float  # what the rule gave this position, in the rule's unit


Origin: TypeAlias = RootOrigin | BranchOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPoint:
    """Where a rule would fork a root."""

    position: int  # index among the root's generated tokens
    score: float
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Insight:
    """What a branch rule saw in a root; for people and reports, never for training."""

    rule: str  # that decided
    asked: int  # points
    found: int
    set_aside: str = ""  # why another rule than the recipe's decided
    hindsight: str = ""  # what the policy was told: h
    reflection: str = ""  # as the policy wrote it
    agrees: bool | None = None  # whether the reflection's OUTCOME is the verifier's; None: it was not asked
    quantities: Mapping[str, Floats] = field(default_factory=lambda: _NOTHING)  # by name, [n] of the root

    def __eq__(self, other: object) -> bool:
        return same(self, other) if isinstance(other, Insight) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rollout of a group: a leaf of the tree and what it earned.

    The fork of `Segment`'s example, as the second member of its group:

    >>> Member(leaf=2, segments=(2,), text="9", verdict=Verdict.scored(0.0), finish=FinishReason.STOP,
    ...        origin=BranchOrigin(root=0, position=1, rule="random", score=0.0)).segments
    (2,)
    """

    leaf: int  # segment in which the rollout ends
    segments: tuple[int, ...]  # POLICY segments it generated, in order; each has one owner
    text: str  # the completion as the verifier saw it; for people, never for training
    verdict: Verdict
    finish: FinishReason
    origin: Origin = field(default_factory=RootOrigin)
    insight: Insight | None = None  # of a root that a branch rule looked at


class TokenKind(enum.StrEnum):
    """What a token was paid for."""

    PROMPT = "prompt"  # prefilled
    CACHED = "cached"  # in a prompt or prefix, read from the prefix cache: not paid again
    ROOT = "root"  # generated by rollouts from the prompt
    SUFFIX = "suffix"  # generated after a fork
    REFLECTION = "reflection"  # generated about a rollout
    SCORED = "scored"  # given and scored; what of it is cached passes through the head alone
    DISCARDED = "discarded"  # generated and thrown away


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a group cost: tokens by `TokenKind` and seconds by phase; absent means zero."""

    tokens: Mapping[TokenKind, int] = field(default_factory=lambda: _NOTHING)
    seconds: Mapping[str, float] = field(default_factory=lambda: _NOTHING)

    def __add__(self, other: Account) -> Account:
        return Account(tokens=_added(self.tokens, other.tokens), seconds=_added(self.seconds, other.seconds))


def _added(left: Mapping[Any, Any], right: Mapping[Any, Any]) -> dict[Any, Any]:
    keys = dict.fromkeys([*left, *right])
    return {key: left.get(key, 0) + right.get(key, 0) for key in keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All rollouts on one task, compared with each other. Grouping is this object, never a stride.

    Raises ValueError when a POLICY segment has no owner or two, a member owns what is not POLICY, or a
    branch names a root that does not come before it.
    """

    id: str  # unique within a run
    task: Task
    tree: TokenTree
    members: tuple[Member, ...]
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        owned = [segment for member in self.members for segment in member.segments]
        policy = [node.id for node in self.tree.segments if node.author is Author.POLICY]
        if sorted(owned) != policy:
            raise ValueError(
                f"group {self.id}: each POLICY segment needs exactly one owner; POLICY segments "
                f"{policy}, owned {sorted(owned)}"
            )
        for index, member in enumerate(self.members):
            if not 0 <= member.leaf < len(self.tree.segments):
                raise ValueError(f"group {self.id}: member {index} ends in segment {member.leaf}: none")
            if isinstance(member.origin, BranchOrigin) and not 0 <= member.origin.root < index:
                raise ValueError(
                    f"group {self.id}: member {index} branches from {member.origin.root}, which does "
                    f"not come before it"
                )

    def generated(self, member: int) -> Iterator[Segment]:
        """Yields the POLICY segments that `member` generated, in order."""
        return (self.tree.segments[segment] for segment in self.members[member].segments)

    def num_generated(self, member: int) -> int:
        """Returns how many tokens `member` generated (its suffix, for a branch)."""
        return sum(len(segment) for segment in self.generated(member))


# --- what the tokens deserve --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherTargets:
    """A teacher's log-probability of each sampled token, and how much it counts."""

    logprobs: Floats  # [n] nats, same temperature as the policy's
    coef: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "logprobs", float_array(self.logprobs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentCredit:
    """What one algorithm says about one POLICY segment; returned, never written into the tree.

    `None` means the stream does not apply. A token with weight 0 leaves loss and denominators.

    >>> SegmentCredit(segment=1, advantages=[0.5, 0.5, 0.5], weights=[1, 1, 1]).advantages.tolist()
    [0.5, 0.5, 0.5]
    """

    segment: int
    weights: Floats  # [n] multiplies the token's loss
    advantages: Floats | None = None  # [n] task advantage
    teacher: TeacherTargets | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", float_array(self.weights))
        if self.advantages is not None:
            object.__setattr__(self, "advantages", float_array(self.advantages))
        streams = [self.weights, self.advantages, self.teacher and self.teacher.logprobs]
        lengths = {len(stream) for stream in streams if stream is not None}
        if len(lengths) != 1:
            raise ValueError(f"segment {self.segment}: streams of different lengths {sorted(lengths)}")
