"""From a task to a group: G rollouts of one prompt, each judged as soon as it is done.

All groups of a step run at the same time, and a rollout is verified while others still decode: the engine
batches what is alive, and a slow verification holds up nobody but its own group. With `branching`, a few
rollouts come from the prompt and the others from points within them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import reduce
from operator import add
from typing import TypeAlias

from turnpoint.protocols import Engine, Renderer, Verifier
from turnpoint.rollout.branched import Branch, Branching, Family, grow
from turnpoint.rollout.concurrency import Together, all_of
from turnpoint.rollout.sampler import Progress, Rollout, Sampler
from turnpoint.types import (
    Account,
    Author,
    BranchOrigin,
    Group,
    Insight,
    Member,
    Origin,
    RootOrigin,
    Task,
    TokenIds,
    TokenKind,
    TreeBuilder,
)

_Judged: TypeAlias = Callable[[int], Awaitable[None]]  # the number of a root that has its verdict


def _ignore(*_: object) -> None:
    """Nobody asked."""


async def _at_once(_: int) -> None:
    """Nothing to wait for."""


class Rollouter:
    """Samples and judges groups of `samples_per_prompt` rollouts.

    Draws are a function of `seed`, the group's id and the member's index alone. The renderer's stop ids
    and stop strings end a rollout. Nothing is retried: an engine or a verifier that breaks ends the call,
    while a verdict that is invalid is data. Raises ValueError for an empty group, and for a `branching` whose
    shape makes another number of members.
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
        branching: Branching | None = None,
    ) -> None:
        if samples_per_prompt < 1:
            raise ValueError(
                f"a group needs at least one rollout, got samples_per_prompt {samples_per_prompt}"
            )
        if branching is not None and branching.group_size != samples_per_prompt:
            raise ValueError(
                f"branching makes {branching.group_size} members, samples_per_prompt is {samples_per_prompt}"
            )
        self.samples_per_prompt = samples_per_prompt
        self._branching = branching
        self._sampler = Sampler(
            engine=engine,
            renderer=renderer,
            verifier=verifier,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )

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

        meet = self._meet(len(tasks))

        async def one(index: int, task: Task) -> Group:
            group_id = f"{step}/{first + index}"
            group = await self._group(task, group_id=group_id, progress=progress, judged=meet(index))
            finished(group)
            return group

        return await all_of(one(index, task) for index, task in enumerate(tasks))

    async def group(self, task: Task, *, group_id: str) -> Group:
        """Returns the group of one task; `group_id` is unique within a run.

        Its account holds tokens by kind and seconds by phase: `generate` from the start to the last
        completion, `verify` summed over members, `slowest_verify` of one member, and what a branch rule took,
        summed over roots. Groups overlap, so their seconds are no wall time when added. Raises EngineError,
        and VerifierError naming task and member when the verifier raised.
        """
        return await self._group(task, group_id=group_id, progress=_ignore, judged=self._meet(1)(0))

    def _meet(self, num_groups: int) -> Callable[[int], _Judged]:
        """Returns what the roots of each group wait for when they are judged."""
        if self._branching is None or not self._branching.deterministic:
            return lambda _: _at_once
        roots = self._branching.roots
        together = Together(num_groups * roots)
        return lambda group: lambda root: together.wait(group * roots + root)

    async def _group(self, task: Task, *, group_id: str, progress: Progress, judged: _Judged) -> Group:
        started = time.perf_counter()
        prompt_ids = self._sampler.renderer.prompt(task.messages)
        if self._branching is not None:
            families = await grow(
                self._branching,
                self._sampler,
                task,
                prompt_ids,
                group_id=group_id,
                progress=progress,
                judged=judged,
            )
            return _Assembly(task, prompt_ids).branched(group_id, families, started)
        rollouts = await all_of(
            self._sampler.rollout(task, prompt_ids, request_id=f"{group_id}/{index}", progress=progress)
            for index in range(self.samples_per_prompt)
        )
        return _Assembly(task, prompt_ids).flat(group_id, rollouts, started)


class _Assembly:
    """Rollouts become the tree and the members of one group."""

    def __init__(self, task: Task, prompt_ids: TokenIds) -> None:
        self._task = task
        self._tree = TreeBuilder()
        self._prompt = self._tree.append(author=Author.PROMPT, token_ids=prompt_ids)
        self._members: list[Member] = []

    def flat(self, group_id: str, rollouts: Sequence[Rollout], started: float) -> Group:
        """Returns the group of rollouts from the prompt."""
        for rollout in rollouts:
            self._add(rollout, parent=self._prompt)
        return self._group(group_id, _account(rollouts, (), started))

    def branched(self, group_id: str, families: Sequence[Family], started: float) -> Group:
        """Returns the group of `families`: all roots first, then the branches of each."""
        roots = [self._add(it.root, parent=self._prompt, insight=it.insight) for it in families]
        for index, it in enumerate(families):
            for branch in it.branches:
                self._add_branch(branch, root=index, segment=roots[index])
        branches = [branch for it in families for branch in it.branches]
        fresh = [branch.rollout for branch in branches if branch.point is None]
        account = _account(
            [*(it.root for it in families), *fresh],
            [branch.rollout for branch in branches if branch.point is not None],
            started,
        )
        return self._group(group_id, reduce(add, (it.account for it in families), account))

    def _add_branch(self, branch: Branch, *, root: int, segment: int) -> None:
        point = branch.point
        if point is None:
            self._add(branch.rollout, parent=self._prompt)
            return
        origin = BranchOrigin(root=root, position=point.position, rule=point.rule, score=point.score)
        self._add(branch.rollout, parent=segment, parent_length=point.position, origin=origin)

    def _add(
        self,
        rollout: Rollout,
        *,
        parent: int,
        parent_length: int | None = None,
        origin: Origin | None = None,
        insight: Insight | None = None,
    ) -> int:
        completion = rollout.completion
        leaf = self._tree.append(
            parent=parent,
            parent_length=parent_length,
            author=Author.POLICY,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_version=completion.policy_version,
        )
        self._members.append(
            Member(
                leaf=leaf,
                segments=(leaf,),
                text=completion.text,
                verdict=rollout.verdict,
                finish=completion.finish,
                origin=origin or RootOrigin(),
                insight=insight,
            )
        )
        return leaf

    def _group(self, group_id: str, account: Account) -> Group:
        members = tuple(self._members)
        return Group(id=group_id, task=self._task, tree=self._tree.freeze(), members=members, account=account)


def _account(roots: Sequence[Rollout], suffixes: Sequence[Rollout], started: float) -> Account:
    rollouts = [*roots, *suffixes]
    cached = sum(rollout.completion.cached_tokens for rollout in rollouts)
    verify = [rollout.verify_seconds for rollout in rollouts]
    tokens = {
        TokenKind.PROMPT: sum(rollout.prompt_tokens for rollout in rollouts) - cached,
        TokenKind.CACHED: cached,
        TokenKind.ROOT: sum(len(rollout.completion.token_ids) for rollout in roots),
    }
    if suffixes:
        tokens[TokenKind.SUFFIX] = sum(len(rollout.completion.token_ids) for rollout in suffixes)
    return Account(
        tokens=tokens,
        seconds={
            "generate": max(rollout.generated_at for rollout in rollouts) - started,
            "verify": sum(verify),
            "slowest_verify": max(verify),
        },
    )
