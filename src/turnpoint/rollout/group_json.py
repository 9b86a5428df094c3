"""A group as one line of JSON and back: what comes back is checked, field by field and as a group.

Token ids are numbers. Log-probabilities are base64 of little-endian float32: the same bits come back, NaN
and infinity too, in a quarter of the space. Text is UTF-8; a lone surrogate is written as its escape.
What teachers said is recorded elsewhere (`turnpoint.reports.teacher_words`), credits are not.

JSON sets three limits: tuples in a task's metadata come back as lists, NaN in it is written as `NaN`, and
a high surrogate followed by a low one comes back as the character that the two spell.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from pydantic import AfterValidator, Field, PlainValidator, Strict

from turnpoint._lines import Count, Finite, Record, within
from turnpoint.types import (
    Account,
    Author,
    BranchOrigin,
    FinishReason,
    Floats,
    Group,
    Insight,
    Member,
    Message,
    Origin,
    RootOrigin,
    Segment,
    Task,
    TokenKind,
    TokenTree,
    Verdict,
    float_array,
    token_array,
)

FORMAT = 1
_SURROGATE = re.compile("[\ud800-\udfff]")

# --- records to JSON ----------------------------------------------------------------------------


def encode(group: Group) -> bytes:
    """Returns the line, with its end; raises TypeError for metadata that is no JSON."""
    record = {
        "format": FORMAT,
        "id": group.id,
        "task": _task_json(group.task),
        "members": [_member_json(member) for member in group.members],
        "account": {"tokens": dict(group.account.tokens), "seconds": dict(group.account.seconds)},
        "segments": [_segment_json(segment) for segment in group.tree.segments],
    }
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=_plain)
    escaped = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return escaped.encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, Any], value))
    if isinstance(value, Sequence):
        return list(cast(Sequence[Any], value))
    raise TypeError(f"{type(value).__name__} cannot be recorded as JSON: {value!r}")


def _task_json(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "messages": [{"role": message.role, "content": message.content} for message in task.messages],
        "answer": task.answer,
        "metadata": task.metadata,
    }


def _member_json(member: Member) -> dict[str, Any]:
    verdict = member.verdict
    return {
        "reward": verdict.reward,
        "finish": member.finish,
        "text": member.text,
        "valid": verdict.valid,
        "reason": verdict.reason,
        "feedback": verdict.feedback,
        "parts": verdict.parts,
        "leaf": member.leaf,
        "segments": member.segments,
        "origin": _origin_json(member.origin),
        "insight": None if member.insight is None else _insight_json(member.insight),
    }


def _origin_json(origin: Origin) -> dict[str, Any] | None:
    return None if isinstance(origin, RootOrigin) else dataclasses.asdict(origin)


def _insight_json(insight: Insight) -> dict[str, Any]:
    return {
        "rule": insight.rule,
        "asked": insight.asked,
        "found": insight.found,
        "set_aside": insight.set_aside,
        "hindsight": insight.hindsight,
        "reflection": insight.reflection,
        "agrees": insight.agrees,
        "quantities": {name: packed(values) for name, values in insight.quantities.items()},
    }


def packed(values: Floats) -> str:
    """Returns float32 numbers as base64; `Packed` reads them back."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def _segment_json(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "parent": segment.parent,
        "parent_length": segment.parent_length,
        "author": segment.author,
        "policy_version": segment.policy_version,
        "token_ids": segment.token_ids.tolist(),
        "logprobs": None if segment.logprobs is None else packed(segment.logprobs),
    }


# --- JSON to records ----------------------------------------------------------------------------


def _unpacked(text: Any) -> Floats:
    if not isinstance(text, str):
        raise ValueError("should be base64 of float32 numbers")
    return float_array(np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4"))


def _known(version: int) -> int:
    if version != FORMAT:
        raise ValueError(f"this version of turnpoint reads {FORMAT}")
    return version


Packed: TypeAlias = Annotated[Any, PlainValidator(_unpacked)]
_TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]


class _Message(Record):
    role: Literal["system", "user", "assistant"]
    content: str


class _Task(Record):
    id: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    answer: str
    metadata: dict[str, Any]


class _Origin(Record):
    root: Count
    position: Count
    rule: str
    score: float  # an infinite one is a rule's to give


class _Insight(Record):
    rule: str
    asked: Count
    found: Count
    set_aside: str
    hindsight: str
    reflection: str
    agrees: bool | None
    quantities: dict[str, Packed]


class _Member(Record):
    reward: Finite | None
    finish: Annotated[FinishReason, Strict(False)]
    text: str
    valid: bool
    reason: str
    feedback: str
    parts: dict[str, float]
    leaf: Count
    segments: list[Count]
    origin: _Origin | None
    insight: _Insight | None


class _Segment(Record):
    id: Count
    parent: Count | None
    parent_length: Count
    author: Annotated[Author, Strict(False)]
    policy_version: int | None
    token_ids: list[_TokenId]
    logprobs: Packed | None


class _Account(Record):
    tokens: dict[Annotated[TokenKind, Strict(False)], Count]
    seconds: dict[str, float]


class _Group(Record):
    format: Annotated[int, AfterValidator(_known)]
    id: str
    task: _Task
    members: list[_Member]
    account: _Account
    segments: list[_Segment]


def decode(record: Any) -> Group:
    """Returns the group of a line's JSON; raises ValueError, with the field's place, when it is none."""
    read = _Group.model_validate(record)
    members: list[Member] = []
    for index, member in enumerate(read.members):
        with within(f".members[{index}]"):
            members.append(_member(member))
    group = Group(
        id=read.id,
        task=Task(
            id=read.task.id,
            messages=tuple(Message(role=it.role, content=it.content) for it in read.task.messages),
            answer=read.task.answer,
            metadata=read.task.metadata,
        ),
        tree=TokenTree(segments=tuple(map(_segment, read.segments))),
        members=tuple(members),
        account=Account(tokens=read.account.tokens, seconds=read.account.seconds),
    )
    for index in range(len(members)):
        with within(f".members[{index}]"):
            _check_place(group, index)
    return group


def _member(read: _Member) -> Member:
    origin, insight = read.origin, read.insight
    return Member(
        leaf=read.leaf,
        segments=tuple(read.segments),
        text=read.text,
        verdict=Verdict(
            reward=read.reward,
            valid=read.valid,
            reason=read.reason,
            feedback=read.feedback,
            parts=read.parts,
        ),
        finish=read.finish,
        origin=RootOrigin()
        if origin is None
        else BranchOrigin(root=origin.root, position=origin.position, rule=origin.rule, score=origin.score),
        insight=None
        if insight is None
        else Insight(
            rule=insight.rule,
            asked=insight.asked,
            found=insight.found,
            set_aside=insight.set_aside,
            hindsight=insight.hindsight,
            reflection=insight.reflection,
            agrees=insight.agrees,
            quantities=insight.quantities,
        ),
    )


def _segment(read: _Segment) -> Segment:
    return Segment(
        id=read.id,
        parent=read.parent,
        parent_length=read.parent_length,
        author=read.author,
        token_ids=token_array(read.token_ids),
        logprobs=read.logprobs,
        policy_version=read.policy_version,
    )


def _check_place(group: Group, index: int) -> None:
    """Raises ValueError where a member does not fit the tree, its root or its tokens."""
    member = group.members[index]
    on_path = [piece.segment.id for piece in group.tree.path(member.leaf)]
    if [segment for segment in on_path if segment in member.segments] != list(member.segments):
        raise ValueError(
            f".segments = {list(member.segments)}: not all on the path to its leaf {member.leaf}"
        )
    if isinstance(member.origin, BranchOrigin):
        generated = group.num_generated(member.origin.root)
        if member.origin.position >= generated:
            raise ValueError(
                f".origin.position = {member.origin.position}: beyond the {generated} tokens of root "
                f"{member.origin.root}"
            )
    for name, values in member.insight.quantities.items() if member.insight else ():
        if len(values) != group.num_generated(index):
            raise ValueError(
                f".insight.quantities.{name}: {len(values)} values for {group.num_generated(index)} tokens"
            )
