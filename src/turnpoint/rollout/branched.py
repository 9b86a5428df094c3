"""A group that forks: a few roots, and continuations from where a rule would have them (HDL).

    M roots, each 1 + sum(continuations) members of the group; default 2 x (1 + 4 + 3) = 16

arXiv 2609.36864: a continuation keeps the root's tokens before the branch point and samples that token and
the rest anew, under the original context. A root that is judged is examined and forks at once, while others
still decode. What the paper leaves open:

- fewer points than asked: the best takes the larger share, one takes all (`allocate_continuations`);
- no point at all, or a root without a verdict: rollouts from the prompt take the place of continuations;
- a root that was cut off at its limit is examined like any other, its record says so, and a continuation
  keeps what is left of the limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnpoint.branching.allocation import allocate_continuations
from turnpoint.protocols import BranchRule, Examination, Root
from turnpoint.rollout.concurrency import all_of
from turnpoint.rollout.sampler import Progress, Rollout, Sampler
from turnpoint.types import Account, BranchPoint, Insight, Task, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Branching:
    """The shape of a group that forks, and the rule that says where."""

    rule: BranchRule
    roots: int
    continuations: tuple[int, ...]  # of each root, by branch point, the best first
    deterministic: bool = False  # forks wait for all roots of a step, so that no verdict's time matters

    @property
    def group_size(self) -> int:
        """Members of a group."""
        return self.roots * (1 + sum(self.continuations))


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A rollout that continues a root from `point` on; without a point it began at the prompt."""

    rollout: Rollout
    point: BranchPoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A root, what a rule found out about it, and what came of that."""

    root: Rollout
    insight: Insight
    branches: tuple[Branch, ...]
    account: Account  # of the examination


async def grow(
    branching: Branching,
    sampler: Sampler,
    task: Task,
    prompt_ids: TokenIds,
    *,
    group_id: str,
    progress: Progress,
    judged: Callable[[int], Awaitable[None]],
) -> list[Family]:
    """Returns the families of one group, in order; the k-th member's draws depend on `group_id` and k.

    `judged` is awaited, with its number, by each root that has its verdict, before it forks. Raises
    EngineError and VerifierError as `Sampler.rollout` does.
    """

    async def sample_root(index: int) -> Rollout:
        root = await sampler.rollout(task, prompt_ids, request_id=f"{group_id}/{index}", progress=progress)
        await judged(index)
        return root

    async def family(index: int, root: Rollout, solved_by: tuple[str, ...]) -> Family:
        seen = Root(
            id=f"{group_id}/{index}",
            task=task,
            prompt_ids=prompt_ids,
            completion=root.completion,
            verdict=root.verdict,
            solved_by=solved_by,
        )
        found = await _examined(branching, sampler, seen)
        first = branching.roots + index * sum(branching.continuations)
        places = _places(branching, found.points)

        async def branch(offset: int, point: BranchPoint | None) -> Branch:
            rollout = await sampler.rollout(
                task,
                prompt_ids,
                request_id=f"{group_id}/{first + offset}",
                progress=progress,
                kept=root.completion.token_ids[: point.position if point else 0],
            )
            return Branch(rollout=rollout, point=point)

        branches = await all_of(branch(offset, point) for offset, point in enumerate(places))
        return Family(root=root, insight=found.insight, branches=tuple(branches), account=found.account)

    async def alone(index: int) -> Family:
        return await family(index, await sample_root(index), ())

    if not branching.rule.needs_siblings:
        return await all_of(alone(index) for index in range(branching.roots))
    roots = await all_of(sample_root(index) for index in range(branching.roots))
    solved = {index: root.completion.text for index, root in enumerate(roots) if root.verdict.passed}
    return await all_of(
        family(index, root, tuple(text for other, text in solved.items() if other != index))
        for index, root in enumerate(roots)
    )


async def _examined(branching: Branching, sampler: Sampler, root: Root) -> Examination:
    if root.verdict.valid:
        return await branching.rule.examine(root, sampler.engine)
    asked = len(branching.continuations)
    why = f"the root has no verdict: {root.verdict.reason}"
    insight = Insight(rule="none", asked=asked, found=0, set_aside=why)
    return Examination(points=(), insight=insight, account=Account())


def _places(branching: Branching, points: tuple[BranchPoint, ...]) -> list[BranchPoint | None]:
    """Returns where each continuation of a root begins, in order."""
    total = sum(branching.continuations)
    if not points:
        return [None] * total
    whole = len(points) == len(branching.continuations)
    shares = branching.continuations if whole else allocate_continuations(total, len(points))
    return [point for point, share in zip(points, shares, strict=True) for _ in range(share)]
