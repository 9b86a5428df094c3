"""Dynamic sampling: groups that teach nothing are set aside and other prompts take their place.

DAPO (arXiv 2503.14476, section 3.2). A group whose members all earn the same has no advantage; as the
policy improves such groups fill the batch and its gradient shrinks. Deviation: only as many prompts are
drawn as groups are missing, not whole batches of which the surplus is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnpoint.metrics import Metrics, Sum
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.rollout.sampler import Progress
from turnpoint.tasks.order import TaskStream
from turnpoint.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Refill:
    """How often missing groups are drawn again in one step, and which groups teach."""

    rounds: int
    teaches: Callable[[Group], bool]
    stop_when_short: bool  # whether too few after the last round end the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All groups that a step sampled, in order, and those of them that it trains on."""

    sampled: tuple[Group, ...]
    kept: tuple[Group, ...]
    missing: int  # groups that the refill could not find
    rounds: int  # of refilling

    def metrics(self) -> Metrics:
        """Returns what refilling did: groups set aside, tokens generated for them, groups still missing."""
        kept = {group.id for group in self.kept}
        aside = [group for group in self.sampled if group.id not in kept]
        tokens = sum(group.num_generated(member) for group in aside for member in range(len(group.members)))
        return {
            "refill/rounds": Sum(self.rounds),
            "refill/set_aside": Sum(len(aside)),
            "refill/set_aside_tokens": Sum(tokens),
            "refill/missing": Sum(self.missing),
        }


async def collect_step(
    rollouter: Rollouter,
    stream: TaskStream,
    *,
    step: int,
    refill: Refill | None,
    progress: Progress,
    expect: Callable[[int], None],
    finished: Callable[[Group], None],
) -> Collected:
    """Returns the groups of one step; without `refill` it trains on all that it samples.

    `progress` and `finished` are those of `Rollouter.collect`; `expect(n)` is told of n more rollouts
    before they are drawn.
    """
    sampled: list[Group] = []
    kept: list[Group] = []
    missing, rounds = stream.batch_size, 0
    while missing and rounds <= (refill.rounds if refill else 0):
        expect(missing * rollouter.samples_per_prompt)
        groups = await rollouter.collect(
            stream.take(missing), step=step, first=len(sampled), progress=progress, finished=finished
        )
        sampled += groups
        kept += groups if refill is None else filter(refill.teaches, groups)
        missing = stream.batch_size - len(kept)
        rounds += 1
    return Collected(sampled=tuple(sampled), kept=tuple(kept), missing=missing, rounds=rounds - 1)
