"""Whether what a teacher is asked by gives a law of its own back: the policy as its own teacher, d = 0.

The policy samples a few tokens, which are then scored the way teachers score, by a fresh prefill of the
recorded ids. Whatever d is there, scoring adds to every teacher's d. A teacher whose weights are those of the
policy must say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from turnpoint.assemble import Policy
from turnpoint.config import RunConfig
from turnpoint.errors import ModelError
from turnpoint.protocols import GenerateRequest, Teacher
from turnpoint.reports.text import number, plural
from turnpoint.rollout.concurrency import all_of
from turnpoint.teachers.detail import Gaps, gaps_of
from turnpoint.teachers.scoring import ScoringTeacher
from turnpoint.teachers.teaching import Word
from turnpoint.types import Author, Group, Member, Task, TreeBuilder, Verdict

_PROMPTS, _TOKENS = 2, 16  # a fraction of a step, and every token tells


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """|d| of a teacher with the policy's own law, over `tokens` tokens, nats; NaN where one is none."""

    who: str
    tokens: int
    mean: float
    largest: float

    @staticmethod
    def of(who: str, groups: Sequence[Group], words: Sequence[Word]) -> Calibration:
        """Returns what `words` say against the law that sampled `groups`."""
        sizes = np.abs(np.concatenate(list(_gaps(groups, words))))
        return Calibration(who=who, tokens=len(sizes), mean=float(sizes.mean()), largest=float(sizes.max()))

    def text(self, *, tolerance: float) -> str:
        """Says how small |d| is; raises ModelError when its mean is above `tolerance`, nats."""
        figures = (
            f"mean |d| {number(self.mean)}, largest {number(self.largest)} nats over "
            f"{plural(self.tokens, 'token')}; training.mismatch_tolerance = {tolerance:g}"
        )
        if self.mean <= tolerance:  # false for NaN
            return f"{self.who} says of the policy's own tokens what the policy says: {figures}"
        raise ModelError(
            f"{self.who} should say of the policy's own tokens what the policy says, and does not: "
            f"{figures}; any teacher's d would be off by as much. Try model.dtype=float32"
        )


def _gaps(groups: Sequence[Group], words: Sequence[Word]) -> Iterator[Gaps]:
    for group, word in zip(groups, words, strict=True):
        for segment, targets in word.items():
            logprobs = group.tree.segments[segment].logprobs
            assert logprobs is not None, "a POLICY segment has log-probabilities"
            yield gaps_of(targets.logprobs, logprobs)


async def calibrate(
    config: RunConfig, policy: Policy, tasks: Sequence[Task], equals: Mapping[str, Teacher]
) -> list[Calibration]:
    """Returns |d| of each teacher whose law is the policy's: itself, and those of `equals`, by what they are.

    Samples at most 16 tokens of two rollouts, which the engine has forgotten afterwards.
    """
    groups = await _sampled(config, policy, tasks)
    policy.engine.forget()  # what is cached was decoded: scoring must read the ids anew, as a teacher does
    own = ScoringTeacher(
        name="itself", engine=policy.engine, coef=1.0, temperature=config.sampling.temperature
    )
    teachers = {"the policy, asked as teachers are,": own, **equals}
    found = [
        Calibration.of(who, groups, await words_on(teacher, groups)) for who, teacher in teachers.items()
    ]
    policy.engine.forget()
    return found


async def words_on(teacher: Teacher, groups: Sequence[Group]) -> list[Word]:
    """Returns what `teacher` says of all members of `groups`, whoever their teacher is."""

    async def word(group: Group) -> Word:
        said = await all_of(teacher.targets(group, index) for index in range(len(group.members)))
        return {segment: targets for part in said for segment, targets in part.items()}

    return await all_of(word(group) for group in groups)


async def _sampled(config: RunConfig, policy: Policy, tasks: Sequence[Task]) -> list[Group]:
    prompts = [policy.renderer.prompt(task.messages) for task in tasks[:_PROMPTS]]
    completions = await all_of(
        policy.engine.generate(
            GenerateRequest(
                id=f"calibration/{index}",
                prompt_ids=prompt,
                max_tokens=min(_TOKENS, config.sampling.max_new_tokens),
                temperature=config.sampling.temperature,
                stop_ids=policy.renderer.stop_ids,
                seed=config.seed,
            )
        )
        for index, prompt in enumerate(prompts)
    )
    groups: list[Group] = []
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        tree = TreeBuilder()
        root = tree.append(author=Author.PROMPT, token_ids=prompt)
        leaf = tree.append(
            parent=root,
            author=Author.POLICY,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_version=completion.policy_version,
        )
        member = Member(
            leaf=leaf,
            segments=(leaf,),
            text=completion.text,
            verdict=Verdict.scored(0.0),  # nobody judges it
            finish=completion.finish,
        )
        group = Group(id=f"calibration/{index}", task=tasks[index], tree=tree.freeze(), members=(member,))
        groups.append(group)
    return groups
