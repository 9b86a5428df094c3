"""A group as a page carries it: a row of the table, its texts, its tokens with their quantities."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from turnpoint.reports.page.blobs import encode, framed, largest, pack_json, planes
from turnpoint.reports.page.vocabulary import Vocabulary
from turnpoint.reports.rollout_metrics import valid_rewards
from turnpoint.reports.teacher_words import Said
from turnpoint.types import (
    Author,
    BranchOrigin,
    Floats,
    Group,
    Insight,
    Member,
    Segment,
    SegmentCredit,
)

TEACHER = "teacher"  # the quantity d, as the page calls it
_QUESTION = 300  # characters in the table
_HEAD, _TAIL = 6_000, 2_000  # characters of a longer text that are kept; its tokens may still be whole

Values = npt.NDArray[np.float64]
Credits = Mapping[int, SegmentCredit]  # by segment


def spread(group: Group) -> float:
    """Returns the population standard deviation of the valid rewards, 0.0 for fewer than two."""
    rewards = valid_rewards(group)
    return statistics.pstdev(rewards) if len(rewards) > 1 else 0.0


def row(group: Group, step: int) -> dict[str, Any]:
    """Returns what the table shows of a group."""
    rewards = valid_rewards(group)
    return {
        "id": group.id,
        "step": step,
        "task": _shortened(group.task.id, 80, 0),
        "question": _shortened(group.task.question, _QUESTION, 0),
        "answer": _shortened(group.task.answer, 80, 0),
        "mean": _rounded(statistics.fmean(rewards)) if rewards else None,
        "spread": _rounded(spread(group)),
        "rewards": [_rounded(member.verdict.reward) for member in group.members],
        "forks": sum(isinstance(member.origin, BranchOrigin) for member in group.members),
    }


def texts(group: Group, credits: Credits, said: Said | None) -> str:
    """Returns task and members, everything but the tokens, packed."""
    return pack_json(
        {
            "messages": [
                [message.role, _shortened(message.content, _HEAD, _TAIL)] for message in group.task.messages
            ],
            "answer": _shortened(group.task.answer, _HEAD, _TAIL),
            "teacher": None if said is None else said.teacher,
            "cost": {kind.value: count for kind, count in group.account.tokens.items()},
            "members": [_member(group, index, credits, said) for index in range(len(group.members))],
        }
    )


def _member(group: Group, index: int, credits: Credits, said: Said | None) -> dict[str, Any]:
    member = group.members[index]
    verdict, origin = member.verdict, member.origin
    forked = isinstance(origin, BranchOrigin)
    return {
        "reward": verdict.reward,
        "valid": verdict.valid,
        "reason": _shortened(verdict.reason, _TAIL, 0),
        "feedback": _shortened(verdict.feedback, _TAIL, 0),
        "parts": {name: _rounded(value) for name, value in verdict.parts.items()},
        "finish": member.finish.value,
        "tokens": group.num_generated(index),
        "text": _shortened(member.text, _HEAD, _TAIL),
        "advantage": _mean_advantage(member, credits),
        "d": None if said is None else _rounded(said.mean(group, index)),
        "origin": [origin.root, origin.position, origin.rule, _rounded(origin.score)] if forked else None,
        "insight": None if member.insight is None else _insight(member.insight),
    }


def _insight(insight: Insight) -> dict[str, Any]:
    return {
        "rule": insight.rule,
        "asked": insight.asked,
        "found": insight.found,
        "set_aside": insight.set_aside,
        "hindsight": _shortened(insight.hindsight, _HEAD, _TAIL),
        "reflection": _shortened(insight.reflection, _HEAD, _TAIL),
        "agrees": insight.agrees,
    }


def _mean_advantage(member: Member, credits: Credits) -> float | None:
    found = [credits[segment].advantages for segment in member.segments if segment in credits]
    values = np.concatenate([it for it in found if it is not None] or [np.zeros(0)])
    return _rounded(float(values.mean())) if len(values) else None


# --- tokens -------------------------------------------------------------------------------------


def tokens(group: Group, credits: Credits, said: Said | None, vocabulary: Vocabulary) -> str:
    """Returns the prompt's and all members' tokens with their quantities, packed.

    The header says how many tokens each has, who wrote them, and which quantities follow, each with its
    largest magnitude in the group: the planes of all token numbers, then a byte per token and quantity.
    """
    prompt = _prompt(group)
    members = [list(_pieces(group, member)) for member in group.members]
    everything = [prompt, *(segment.token_ids for pieces in members for segment in pieces)]
    quantities = [
        _quantities(member, pieces, credits, said)
        for member, pieces in zip(group.members, members, strict=True)
    ]
    names = list(dict.fromkeys(name for each in quantities for name in each))
    scales = {
        name: largest(np.concatenate([each[name] for each in quantities if name in each])) for name in names
    }
    body = [planes(vocabulary.numbers(np.concatenate(everything)))]
    body += [encode(values, scales[name]).tobytes() for each in quantities for name, values in each.items()]
    header = {
        "prompt": len(prompt),
        "scales": scales,
        "members": [
            {
                "runs": [[segment.author.value, len(segment)] for segment in pieces],
                "quantities": list(each),
            }
            for pieces, each in zip(members, quantities, strict=True)
        ],
    }
    return framed(header, b"".join(body))


def _prompt(group: Group) -> npt.NDArray[np.int32]:
    """The tokens before anything was sampled."""
    segments = group.tree.segments
    return (
        segments[0].token_ids if segments and segments[0].author is Author.PROMPT else np.zeros(0, np.int32)
    )


def _pieces(group: Group, member: Member) -> Iterator[Segment]:
    """What a member generated and, between that, what it was answered."""
    first = member.segments[0] if member.segments else None
    path = [piece.segment for piece in group.tree.path(member.leaf)]
    start = next((at for at, segment in enumerate(path) if segment.id == first), len(path))
    return iter(path[start:])


def _quantities(
    member: Member, pieces: Sequence[Segment], credits: Credits, said: Said | None
) -> dict[str, Values]:
    """Returns a value per token of the member, NaN where it was not sampled or not measured."""
    unknown = [np.full(len(segment), np.nan) for segment in pieces]
    sampled = np.concatenate([np.full(len(it), it.author is Author.POLICY) for it in pieces] or [np.zeros(0)])
    advantages = [
        known if (known := _advantages(segment, credits)) is not None else nothing
        for segment, nothing in zip(pieces, unknown, strict=True)
    ]
    logprobs = [
        nothing if segment.logprobs is None else segment.logprobs.astype(np.float64)
        for segment, nothing in zip(pieces, unknown, strict=True)
    ]
    values = {"surprisal": -_joined(logprobs), "advantage": _joined(advantages)}
    if said is not None:
        values[TEACHER] = _joined([said.gaps(it) for it in pieces])
    for name, of_root in member.insight.quantities.items() if member.insight else ():
        if name not in values and len(of_root) == int(sampled.sum()):
            values[name] = np.full(len(sampled), np.nan)
            values[name][sampled.astype(bool)] = of_root
    return values


def _advantages(segment: Segment, credits: Credits) -> Floats | None:
    return credits[segment.id].advantages if segment.id in credits else None


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> Values:
    return np.concatenate([*arrays, np.zeros(0)]).astype(np.float64)


def _shortened(text: str, head: int, tail: int) -> str:
    if len(text) <= head + tail:
        return text
    left_out = f" [... {len(text) - head - tail:,} characters left out ...] " if tail else "..."
    return text[:head] + left_out + text[len(text) - tail :]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
