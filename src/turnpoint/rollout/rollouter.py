"""From a task to a group: G rollouts of one prompt, each judged as soon as it is done.

All groups of a step run at the same time, and a rollout is verified while others still decode: the engine
batches what is alive, and a slow verification holds up nobody but its own group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.errors import VerifierError
from turnpoint.protocols import Completion, Engine, GenerateRequest, Renderer, Verifier
from turnpoint.rollout.concurrency import all_of
from turnpoint.types import Account, Author, Group, Member, Task, TokenIds, TokenKind, TreeBuilder, Verdict

Progress: TypeAlias = Callable[[int, int], None]  # (rollouts finished, tokens they generated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollout:
    completion: Completion
    verdict: Verdict
    generated_at: float  # seconds of the performance counter
    verify_seconds: float


def _ignore(*_: object) -> None:
    """Nobody asked."""


class Rollouter:
    """Samples and judges groups of `samples_per_prompt` rollouts.

    Draws are a function of `seed`, the group's id and the member's index alone. The renderer's stop ids
    and stop strings end a rollout. Nothing is retried: an engine or a verifier that breaks ends the call,
    while a verdict that is invalid is data.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        verifier: Verifier,
        *,
        samples_per_prompt: int,
        temperature: float,
        max_new_tokens: int,
        seed: int,
    ) -> None:
        if samples_per_prompt < 1:
            raise ValueError(
                f"a group needs at least one rollout, got samples_per_prompt {samples_per_prompt}"
            )
        self._engine = engine
        self._renderer = renderer
        self._verifier = verifier
        self.samples_per_prompt = samples_per_prompt
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._seed = seed

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        first: int = 0,
        progress: Progress = _ignore,
        finished: Callable[[Group], None] = _ignore,
    ) -> list[Group]:
        """Returns one group per task, in order, with ids "step/index" from `first` on.

        A task may come twice.

        `progress(1, tokens)` is called after every rollout, `finished(group)` as soon as a group is whole.
        Raises as `group` does, at the first error; no request or verification is left running.
        """

        async def one(index: int, task: Task) -> Group:
            group = await self._group(task, group_id=f"{step}/{first + index}", progress=progress)
            finished(group)
            return group

        return await all_of(one(index, task) for index, task in enumerate(tasks))

    async def group(self, task: Task, *, group_id: str) -> Group:
        """Returns the group of one task; `group_id` is unique within a run.

        Its account holds tokens by kind and seconds by phase: `generate` from the start to the last
        completion, `verify` summed over members, `slowest_verify` of one member. Groups overlap, so
        their seconds are no wall time when added. Raises EngineError, and VerifierError naming task and
        member when the verifier raised.
        """
        return await self._group(task, group_id=group_id, progress=_ignore)

    async def _group(self, task: Task, *, group_id: str, progress: Progress) -> Group:
        started = time.perf_counter()
        prompt_ids = self._renderer.prompt(task.messages)
        rollouts = await all_of(
            self._rollout(task, prompt_ids, request_id=f"{group_id}/{index}", progress=progress)
            for index in range(self.samples_per_prompt)
        )
        return _assemble(task, group_id, prompt_ids, rollouts, started)

    async def _rollout(
        self, task: Task, prompt_ids: TokenIds, *, request_id: str, progress: Progress
    ) -> _Rollout:
        completion = await self._engine.generate(
            GenerateRequest(
                id=request_id,
                prompt_ids=prompt_ids,
                max_tokens=self._max_new_tokens,
                temperature=self._temperature,
                stop_ids=self._renderer.stop_ids,
                stop_strings=self._renderer.stop_strings,
                seed=self._seed,
            )
        )
        assert len(completion.token_ids), f"{request_id}: an engine samples at least one token"
        generated_at = time.perf_counter()
        verdict = await self._verify(task, completion, request_id)
        verify_seconds = time.perf_counter() - generated_at
        progress(1, len(completion.token_ids))
        return _Rollout(
            completion=completion,
            verdict=verdict,
            generated_at=generated_at,
            verify_seconds=verify_seconds,
        )

    async def _verify(self, task: Task, completion: Completion, request_id: str) -> Verdict:
        try:
            return await self._verifier.verify(task, completion.text)
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise VerifierError(
                f"task {task.id}, rollout {request_id}: the verifier raised {what}"
            ) from error


def _assemble(
    task: Task, group_id: str, prompt_ids: TokenIds, rollouts: Sequence[_Rollout], started: float
) -> Group:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=prompt_ids)
    members: list[Member] = []
    for rollout in rollouts:
        completion = rollout.completion
        leaf = tree.append(
            parent=prompt,
            author=Author.POLICY,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_version=completion.policy_version,
        )
        members.append(
            Member(
                leaf=leaf,
                segments=(leaf,),
                text=completion.text,
                verdict=rollout.verdict,
                finish=completion.finish,
            )
        )
    account = _account(len(prompt_ids), rollouts, started)
    return Group(id=group_id, task=task, tree=tree.freeze(), members=tuple(members), account=account)


def _account(prompt_tokens: int, rollouts: Sequence[_Rollout], started: float) -> Account:
    cached = sum(rollout.completion.cached_tokens for rollout in rollouts)
    verify = [rollout.verify_seconds for rollout in rollouts]
    return Account(
        tokens={
            TokenKind.PROMPT: prompt_tokens * len(rollouts) - cached,
            TokenKind.CACHED: cached,
            TokenKind.ROOT: sum(len(rollout.completion.token_ids) for rollout in rollouts),
        },
        seconds={
            "generate": max(rollout.generated_at for rollout in rollouts) - started,
            "verify": sum(verify),
            "slowest_verify": max(verify),
        },
    )
