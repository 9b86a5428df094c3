"""A widespread mistake, to be measured: the value of a top-k reverse KL as the sampled token's advantage.

    A_t = - sum over v in K_t of w_v (log p(v) - log q(v)),      w = p renormalised on K_t, the policy's top k

as Miles has it (`--opd-log-prob-top-k`, only-student, student_p). It does not depend on which token was
sampled, so that its expected policy gradient is 0. turnpoint refuses it by name and has no seam for it: here
the teachers of a run are exchanged as they are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import turnpoint as tp
from turnpoint.commands import train as command
from turnpoint.distill import Opened, open_teachers
from turnpoint.metrics import Metric
from turnpoint.protocols import Engine, ScoreRequest, Scores, Teacher
from turnpoint.teachers.kinds import TokenKinds
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.scoring import ScoringTeacher
from turnpoint.teachers.shares import Credited
from turnpoint.teachers.teaching import Teaching, Word
from turnpoint.types import Floats, Group, SegmentCredit, TeacherTargets, float_array

_K = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTeaching:
    """Does what `Teaching` does, with the value as an advantage; what it calls a word is sampled - value."""

    policy: Engine
    teaching: Teaching
    values: dict[int, Floats] = field(default_factory=dict[int, Floats])  # by identity of a word's targets

    @property
    def routing(self) -> Routing:
        """Who has which teacher."""
        return self.teaching.routing

    @property
    def teachers(self) -> Mapping[str, Teacher]:
        """Those that are in memory."""
        return self.teaching.teachers

    @property
    def kinds(self) -> TokenKinds:
        """Of the policy's ids, for figures."""
        return self.teaching.kinds

    def rest(self) -> None:
        """Lets go of what teachers have cached."""
        self.teaching.rest()

    @property
    def clip(self) -> None:
        """Nothing is cut."""
        return

    async def words(
        self, groups: Sequence[Group], *, progress: Callable[[int, int], None] = lambda rollouts, tokens: None
    ) -> list[Word]:
        """Returns the words of valid members; each is a rollout of one turn."""
        self.values.clear()
        found: list[Word] = []
        for group in groups:
            said: dict[int, TeacherTargets] = {}
            teacher = cast(ScoringTeacher, self.teachers[self.routing.of(group.task)])
            for index, member in enumerate(group.members):
                if not member.verdict.valid:
                    continue
                (segment,) = group.generated(index)
                ids = group.tree.path_ids(member.leaf)
                start = len(ids) - len(segment)
                value = await topk_values(self.policy, teacher.engine, group.id, ids, start)
                assert segment.logprobs is not None, "a POLICY segment has log-probabilities"
                said[segment.id] = TeacherTargets(logprobs=segment.logprobs - value, coef=teacher.coef)
                self.values[id(said[segment.id])] = value
                progress(1, len(segment))
            found.append(said)
        self.rest()
        return found

    def asked(self, groups: Sequence[Group]) -> int:
        """Returns how often `words` will report progress."""
        return self.teaching.asked(groups)

    def teach(
        self, credited: Sequence[Credited], words: Sequence[Word]
    ) -> tuple[list[Credited], dict[str, Metric]]:
        """Returns the credits with minus the value as advantage."""
        pairs = zip(credited, words, strict=True)
        return [(group, self._join(credits, word)) for (group, credits), word in pairs], {}

    def _join(self, credits: Sequence[SegmentCredit], word: Word) -> list[SegmentCredit]:
        return [
            replace(credit, advantages=-word[credit.segment].coef * self.values[id(word[credit.segment])])
            if credit.segment in word
            else replace(credit, advantages=None, weights=np.zeros_like(credit.weights))
            for credit in credits
        ]


async def topk_values(policy: Engine, teacher: Engine, name: str, ids: Any, start: int) -> Floats:
    """Returns the value at each token from `start` on, nats."""
    ask = ScoreRequest(id=f"{name}/value", token_ids=ids, start=start, top_k=_K)
    mine = await policy.score(ask)
    theirs = await teacher.score(replace(ask, top_k=teacher.capabilities.max_top_k))
    candidates, own = _top(mine)
    order, known = _top(theirs)
    whole = np.empty_like(known)
    np.put_along_axis(whole, order, known, axis=1)
    gap = own - np.take_along_axis(whole, candidates, axis=1)
    weights = np.exp(own)
    return float_array((weights * gap).sum(1) / weights.sum(1))


def _top(scores: Scores) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    assert scores.top_ids is not None, "asked for"
    assert scores.top_logprobs is not None, "asked for"
    return scores.top_ids.astype(np.int64), scores.top_logprobs


def train(recipe: tp.RunConfig) -> tp.TrainResult:
    """Trains as `tp.train`, with the value in place of the teachers' words."""

    async def opened(*args: Any, **options: Any) -> Opened:
        found, policy = await open_teachers(*args, **options), args[2]
        values = ValueTeaching(policy=policy.engine, teaching=found.teaching)
        return replace(found, teaching=cast(Teaching, values))

    with patch.object(command, "open_teachers", opened):
        return tp.train(recipe)
