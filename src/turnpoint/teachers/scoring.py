"""A teacher behind an engine: one pass over each rollout, as the policy's own laws are scored.

The engine may be around another model in this process, a server, or the policy's own under a prompt that
says more than the policy was told.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from turnpoint.protocols import Engine, ScoreRequest
from turnpoint.types import Group, TeacherTargets, TokenIds, token_array

Told: TypeAlias = Callable[[Group, int], "TokenIds | None"]


class Silence(enum.StrEnum):
    """Why a teacher has no word on a rollout."""

    UNTOLD = "untold"  # there is nothing to tell it in hindsight: no sibling earned its reward
    TOO_LONG = "too_long"  # the rollout, behind what the teacher is told, does not fit its context
    EMPTY = "empty"  # nothing was generated


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringTeacher:
    """Scores what a member generated, at the `temperature` it was sampled at, over the recorded ids.

    `told` gives the prompt that the teacher sees in place of the policy's, or None: it has no word on that
    rollout. Without it the prompt is the policy's own. A rollout that does not fit the teacher's context
    gets no word either. A rollout's own tokens begin behind a prompt, so that the first has a law, too.
    """

    name: str
    engine: Engine
    coef: float
    temperature: float
    told: Told | None = None

    async def targets(self, group: Group, member: int) -> Mapping[int, TeacherTargets]:
        """Returns the log-probabilities, nats, of each segment that `member` generated."""
        asked = self._ids(group, member)
        if isinstance(asked, Silence):
            return {}
        ids, shift = asked
        pieces = group.tree.path(group.members[member].leaf)
        ends = np.cumsum([piece.length for piece in pieces])
        places = {piece.segment.id: int(end) for piece, end in zip(pieces, ends, strict=True)}
        spans = {
            segment.id: (places[segment.id] - len(segment) + shift, places[segment.id] + shift)
            for segment in group.generated(member)
        }
        start = min(begin for begin, _ in spans.values())
        scores = await self.engine.score(
            ScoreRequest(
                id=f"{group.id}/{member}/{self.name}",
                token_ids=ids,
                start=start,
                temperature=self.temperature,
            )
        )
        return {
            segment: TeacherTargets(logprobs=scores.logprobs[begin - start : end - start], coef=self.coef)
            for segment, (begin, end) in spans.items()
        }

    def silence(self, group: Group, member: int) -> Silence | None:
        """Returns why `targets` has no word on `member`; None where it has one."""
        asked = self._ids(group, member)
        return asked if isinstance(asked, Silence) else None

    def _ids(self, group: Group, member: int) -> tuple[TokenIds, int] | Silence:
        """Returns what the engine is given, and how much further back the rollout begins in it."""
        pieces = group.tree.path(group.members[member].leaf)
        first = pieces[0].token_ids
        prompt = first if self.told is None else self.told(group, member)
        if prompt is None:
            return Silence.UNTOLD
        ids = token_array(np.concatenate([prompt, *[piece.token_ids for piece in pieces[1:]]]))
        if len(ids) > self.engine.capabilities.context_length:
            return Silence.TOO_LONG
        return (ids, len(prompt) - len(first)) if group.members[member].segments else Silence.EMPTY
