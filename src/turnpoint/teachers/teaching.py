"""What teachers say about the rollouts of a step, and how that joins what the task says.

    A_t  =  A_task  +  coef * d_t,        d_t = log p_T(y_t) - log p_S(y_t)

Teachers speak one after the other, so that one of them computes at a time. The student's part of d is
filled in while it learns, with the weights as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from turnpoint.metrics import Metrics
from turnpoint.protocols import Teacher
from turnpoint.rollout.concurrency import all_of
from turnpoint.teachers.mixture import Mixture
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.shares import Credited, balanced
from turnpoint.types import Group, SegmentCredit, TeacherTargets

Word: TypeAlias = Mapping[int, TeacherTargets]  # on a group, by segment id
Visit: TypeAlias = Callable[[], AbstractAsyncContextManager[Teacher]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """Teachers by name, and who has which; `task`: whether the task's own advantages count, too.

    `visits` bring in teachers that are there only while they speak. `mixtures` are made of teachers of both.
    With `shares` the teachers' coefs are weighed by `turnpoint.teachers.shares`. `rest` is called once all
    have spoken about a step, before the next one.
    """

    teachers: Mapping[str, Teacher]
    routing: Routing
    task: bool
    clip: float | None = None  # on |d|, nats, for figures; it acts where the student's part is known
    visits: Mapping[str, Visit] = field(default_factory=dict[str, Visit])
    mixtures: Mapping[str, Mixture] = field(default_factory=dict[str, Mixture])
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    rest: Callable[[], None] = lambda: None

    async def words(
        self, groups: Sequence[Group], *, progress: Callable[[int, int], None] = lambda rollouts, tokens: None
    ) -> list[Word]:
        """Returns what each group's teacher says about its valid members.

        `progress(1, tokens)` is called for every member and every teacher that speaks of it. Raises
        EngineError as teachers do, and what a visit raises.
        """
        said: list[dict[str, Word]] = [{} for _ in groups]
        present: dict[str, Visit] = {it: _present(teacher) for it, teacher in self.teachers.items()}
        for name, visit in {**present, **self.visits}.items():
            asked = [index for index, group in enumerate(groups) if name in self._heard(group)]
            if not asked:
                continue
            found = await _turn(visit, [groups[index] for index in asked], progress)
            for index, word in zip(asked, found, strict=True):
                said[index][name] = word
        self.rest()
        return [self._one(group, words) for group, words in zip(groups, said, strict=True)]

    def asked(self, groups: Sequence[Group]) -> int:
        """Returns how often `words` will report progress: once a valid member and teacher of it."""
        return sum(
            len(self._heard(group)) * sum(member.verdict.valid for member in group.members)
            for group in groups
        )

    def _heard(self, group: Group) -> tuple[str, ...]:
        name = self.routing.of(group.task)
        return tuple(self.mixtures[name].of) if name in self.mixtures else (name,)

    def _one(self, group: Group, words: Mapping[str, Word]) -> Word:
        name = self.routing.of(group.task)
        return self.mixtures[name].word(words) if name in self.mixtures else words.get(name, {})

    def teach(self, credited: Sequence[Credited], words: Sequence[Word]) -> tuple[list[Credited], Metrics]:
        """Returns the credits of a step with what teachers said of it, and the metrics of shares."""
        joined = [
            (group, self.join(credits, word)) for (group, credits), word in zip(credited, words, strict=True)
        ]
        return balanced(joined, self.routing, self.shares) if self.shares else (list(joined), {})

    def join(self, credits: Sequence[SegmentCredit], word: Word) -> list[SegmentCredit]:
        """Returns `credits` with the teacher's word beside the task's, or in its place.

        What counts at all (`weights`) stays as the task's credit says; a segment about which nobody has a
        word counts for nothing.
        """
        joined: list[SegmentCredit] = []
        for credit in credits:
            teacher = word.get(credit.segment)
            advantages = credit.advantages if self.task else None
            silent = teacher is None and advantages is None
            joined.append(
                replace(
                    credit,
                    teacher=teacher,
                    advantages=advantages,
                    weights=np.zeros_like(credit.weights) if silent else credit.weights,
                )
            )
        return joined


def _present(teacher: Teacher) -> Visit:
    return lambda: nullcontext(teacher)


async def _turn(visit: Visit, groups: Sequence[Group], progress: Callable[[int, int], None]) -> list[Word]:
    """Returns what a teacher says; whoever is there only for its turn is known to nobody afterwards."""
    async with visit() as teacher:
        return await _words(teacher, groups, progress)


async def _words(
    teacher: Teacher, groups: Sequence[Group], progress: Callable[[int, int], None]
) -> list[Word]:
    """Returns what one teacher says about the valid members of each group, all asked at the same time."""
    words: list[dict[int, TeacherTargets]] = [{} for _ in groups]

    async def ask(index: int, member: int) -> None:
        words[index] |= await teacher.targets(groups[index], member)
        progress(1, groups[index].num_generated(member))

    await all_of(
        ask(index, member)
        for index, group in enumerate(groups)
        for member, who in enumerate(group.members)
        if who.verdict.valid
    )
    return list(words)
