"""What teachers say about the rollouts of a step, and how that joins what the task says.

    A_t  =  A_task  +  coef * d_t,        d_t = log p_T(y_t) - log p_S(y_t)

Teachers speak one after the other, so that one of them computes at a time. The student's part of d is
filled in while it learns, with the weights as they are then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turnpoint.protocols import Teacher
from turnpoint.rollout.concurrency import all_of
from turnpoint.teachers.kinds import ALL_CONTENT, TokenKinds
from turnpoint.teachers.routing import Routing
from turnpoint.types import Group, SegmentCredit, TeacherTargets

Word = Mapping[int, TeacherTargets]  # on a group, by segment id


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """Teachers by name, and who has which; `task`: whether the task's own advantages count, too.

    `rest` is called once all have spoken about a step, before the next one.
    """

    teachers: Mapping[str, Teacher]
    routing: Routing
    task: bool
    clip: float | None = None  # on |d|, nats, for figures; it acts where the student's part is known
    kinds: TokenKinds = ALL_CONTENT  # of the policy's ids, for figures
    rest: Callable[[], None] = lambda: None

    async def words(
        self, groups: Sequence[Group], *, progress: Callable[[int, int], None] = lambda rollouts, tokens: None
    ) -> list[Word]:
        """Returns what each group's teacher says about its valid members.

        `progress(1, tokens)` is called for every member. Raises EngineError as teachers do.
        """
        words: list[dict[int, TeacherTargets]] = [{} for _ in groups]
        for name, teacher in self.teachers.items():
            asked = [
                (index, member)
                for index, group in enumerate(groups)
                if self.routing.of(group.task) == name
                for member, who in enumerate(group.members)
                if who.verdict.valid
            ]

            async def ask(index: int, member: int, teacher: Teacher = teacher) -> None:
                words[index] |= await teacher.targets(groups[index], member)
                progress(1, groups[index].num_generated(member))

            await all_of(ask(index, member) for index, member in asked)
        self.rest()
        return list(words)

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
