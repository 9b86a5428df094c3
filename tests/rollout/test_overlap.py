"""While one rollout is verified, reflected upon and forked, the engine decodes the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from tests.engine.serve import ask, make_engine
from tests.rollout.test_rollouter import Letters, task
from turnpoint.engine import TorchEngine
from turnpoint.protocols import Engine, Examination, Renderer, Root, ScoreRequest, Verifier
from turnpoint.rollout.branched import Branching
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import Account, BranchOrigin, BranchPoint, Group, Insight, Task, Verdict, token_array

STEPS = 10  # of the engine, that a verifier waits for


@dataclass
class Slow:
    """Takes as long as the engine needs for some steps; breaks if that stands still meanwhile."""

    engine: TorchEngine

    async def verify(self, task: Task, completion: str) -> Verdict:
        began = self.engine.stats.steps
        for _ in range(20_000):
            await asyncio.sleep(0.001)
            if self.engine.stats.steps >= began + STEPS:
                return Verdict.scored(1.0)
        raise AssertionError("the engine stands still")

    async def self_check(self, task: Task) -> Verdict:
        return Verdict.scored(1.0)


@dataclass
class Reflected:
    """Writes about a root, scores it under what it wrote, and forks it after its first token."""

    needs_siblings: bool = False

    async def examine(self, root: Root, engine: Engine) -> Examination:
        ids = root.completion.token_ids
        written = await engine.generate(ask(f"{root.id}/reflection", ids, max_tokens=4))
        told = token_array(np.concatenate([written.token_ids, ids]))
        await engine.score(ScoreRequest(id=f"{root.id}/score", token_ids=told, start=4))
        insight = Insight(rule="reflected", asked=1, found=1)
        point = BranchPoint(position=1, score=1.0, rule="reflected")
        return Examination(points=(point,), insight=insight, account=Account())


async def group_beside_a_long_rollout(engine: TorchEngine) -> tuple[Group, bool]:
    """Returns a group that forks, and whether a rollout that began before it was over first."""
    verifier: Verifier = Slow(engine)
    renderer: Renderer = Letters(stop_ids=frozenset())
    branching = Branching(rule=Reflected(), roots=2, continuations=(2,))
    rollouter = Rollouter(
        engine,
        renderer,
        verifier,
        samples_per_prompt=branching.group_size,
        temperature=1.0,
        max_new_tokens=4,
        seed=0,
        branching=branching,
    )
    long = asyncio.create_task(engine.generate(ask("long", max_tokens=240)))
    group = await asyncio.wait_for(rollouter.group(task(), group_id="0/0"), timeout=60)
    over = long.done()
    await long
    return group, over


def test_verification_reflection_and_forks_keep_nobody_waiting() -> None:
    engine = make_engine()
    group, over = asyncio.run(group_beside_a_long_rollout(engine))
    assert sum(isinstance(it.origin, BranchOrigin) for it in group.members) == 4
    assert not over
    # everything else was decoded beside the long one: a step for each of its tokens
    assert engine.stats.steps == 240
    assert engine.stats.sampled == 240 + 2 * 4 + 2 * 4 + 4 * 3
