"""Rollouts on disk: one JSON line per group, complete and readable with the usual tools.

A line holds the task, then each member's reward, finish reason and text, then the token tree:

    jq -r '.members[] | [.reward, .finish, .text] | @json' rollouts.jsonl

Token ids are numbers. Log-probabilities are base64 of little-endian float32: the same bits come back, NaN
and infinity too, in a quarter of the space. Text is UTF-8; a lone surrogate is written as its escape. A
line is appended as a whole, so that a crash can tear only the last one: readers skip it and say so,
and the next writer removes it. Teacher targets and credits are not recorded.

JSON sets three limits: tuples in a task's metadata come back as lists, NaN in it is written as `NaN`, and
a high surrogate followed by a low one comes back as the character that the two spell.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np

from turnpoint.errors import RunFolderError
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
_TAIL = 1 << 16  # bytes looked at together when the end of a file is searched for a line's end
_START = re.compile(rb'\{"format":\d+,"id":"(\d+)/')
_SURROGATE = re.compile("[\ud800-\udfff]")


class RolloutWriter:
    """Appends groups to a file, each handed to the operating system before `write` returns.

    One writer per file. It removes, with a warning, what a crash left of a torn last line. Raises
    RunFolderError when the file cannot be opened or written; what was written before stays whole. Use it
    as a context manager.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            self._file = self._path.open("a+b", buffering=0)
            _remove_torn_end(self._file, self._path)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, group: Group) -> None:
        """Appends one group."""
        line = memoryview(_encode(group))
        start = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):  # readers tolerate a torn end; the first error is the news
                self._file.truncate(start)
            raise self._failure(error) from error

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        self._file.close()

    def __enter__(self) -> RolloutWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _failure(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self._path}: cannot write rollouts: {error.strerror or error}")


def read_groups(path: str | Path) -> Iterator[Group]:
    """Yields the recorded groups in order, equal to those written.

    Warns about a torn last line and skips it. Raises RunFolderError when the file cannot be read or a
    line, named by its number, is no recorded group.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    warnings.warn(f"{path}: line {number}, the last, is torn; skipped", stacklevel=2)
                    return
                yield _decode(line, where=f"{path}: line {number}")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot read rollouts: {error.strerror or error}") from error


def step_of_group(line: bytes) -> int:
    """Returns the step that a recorded line belongs to, from its group's id "step/index".

    Only the start of the line is looked at. Raises ValueError when it is no recorded group.
    """
    start = _START.match(line)
    if start is None:
        raise ValueError(f"no recorded group: it begins with {line[:40]!r}")
    return int(start[1])


def _remove_torn_end(file: FileIO, path: Path) -> None:
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        warnings.warn(f"{path}: the last line was torn; removed {size - end} bytes", stacklevel=3)
        file.truncate(end)


# --- records to JSON ----------------------------------------------------------------------------


def _encode(group: Group) -> bytes:
    record = {
        "format": FORMAT,
        "id": group.id,
        "task": _task_record(group.task),
        "members": [_member_record(member) for member in group.members],
        "account": {"tokens": dict(group.account.tokens), "seconds": dict(group.account.seconds)},
        "segments": [_segment_record(segment) for segment in group.tree.segments],
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


def _task_record(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "messages": [{"role": message.role, "content": message.content} for message in task.messages],
        "answer": task.answer,
        "metadata": task.metadata,
    }


def _member_record(member: Member) -> dict[str, Any]:
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
        "origin": _origin_record(member.origin),
        "insight": None if member.insight is None else _insight_record(member.insight),
    }


def _origin_record(origin: Origin) -> dict[str, Any] | None:
    return None if isinstance(origin, RootOrigin) else dataclasses.asdict(origin)


def _insight_record(insight: Insight) -> dict[str, Any]:
    return {
        "rule": insight.rule,
        "asked": insight.asked,
        "found": insight.found,
        "set_aside": insight.set_aside,
        "hindsight": insight.hindsight,
        "reflection": insight.reflection,
        "agrees": insight.agrees,
        "quantities": {name: _packed(values) for name, values in insight.quantities.items()},
    }


def _packed(values: Floats) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def _segment_record(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "parent": segment.parent,
        "parent_length": segment.parent_length,
        "author": segment.author,
        "policy_version": segment.policy_version,
        "token_ids": segment.token_ids.tolist(),
        "logprobs": None if segment.logprobs is None else _packed(segment.logprobs),
    }


# --- JSON to records ----------------------------------------------------------------------------


def _decode(line: bytes, *, where: str) -> Group:
    try:
        record = json.loads(line)
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}, this version reads {FORMAT}")
        return Group(
            id=record["id"],
            task=_task(record["task"]),
            tree=TokenTree(segments=tuple(_segment(part) for part in record["segments"])),
            members=tuple(_member(part) for part in record["members"]),
            account=Account(
                tokens={TokenKind(kind): count for kind, count in record["account"]["tokens"].items()},
                seconds=record["account"]["seconds"],
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunFolderError(f"{where} is no recorded group: {what}") from error


def _task(record: dict[str, Any]) -> Task:
    messages = tuple(Message(**message) for message in record["messages"])
    return Task(id=record["id"], messages=messages, answer=record["answer"], metadata=record["metadata"])


def _member(record: dict[str, Any]) -> Member:
    origin = record["origin"]
    return Member(
        leaf=record["leaf"],
        segments=tuple(record["segments"]),
        text=record["text"],
        verdict=Verdict(
            reward=record["reward"],
            valid=record["valid"],
            reason=record["reason"],
            feedback=record["feedback"],
            parts=record["parts"],
        ),
        finish=FinishReason(record["finish"]),
        origin=RootOrigin() if origin is None else BranchOrigin(**origin),
        insight=None if record["insight"] is None else _insight(record["insight"]),
    )


def _insight(record: dict[str, Any]) -> Insight:
    return Insight(
        rule=record["rule"],
        asked=record["asked"],
        found=record["found"],
        set_aside=record["set_aside"],
        hindsight=record["hindsight"],
        reflection=record["reflection"],
        agrees=record["agrees"],
        quantities={name: _floats(values) for name, values in record["quantities"].items()},
    )


def _segment(record: dict[str, Any]) -> Segment:
    return Segment(
        id=record["id"],
        parent=record["parent"],
        parent_length=record["parent_length"],
        author=Author(record["author"]),
        token_ids=token_array(record["token_ids"]),
        logprobs=None if record["logprobs"] is None else _floats(record["logprobs"]),
        policy_version=record["policy_version"],
    )


def _floats(text: str) -> Floats:
    return float_array(np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4"))
