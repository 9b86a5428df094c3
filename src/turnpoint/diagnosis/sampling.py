"""A few real rollouts, and how fast this machine samples the recipe's batch.

The first step's own prompts are prefilled once (as after every update, when nothing is cached), then all
its rollouts take a few tokens together: that gives the speed at the recipe's batch. Of a batch for which a
given time is too short as much is measured as it allows, and the rest is in proportion. Then as many whole
rollouts are sampled as a given time allows; where it does not allow one group, they are cut short and
nothing is claimed that would need their ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnpoint.assemble import Policy
from turnpoint.config import RunConfig
from turnpoint.protocols import GenerateRequest, Verifier
from turnpoint.reports.rollout_metrics import completion_length
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import number
from turnpoint.rollout.concurrency import all_of
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import Group, Task

_SPEED_TOKENS = 8  # per rollout, to measure the speed at the recipe's batch
_FEW = 8  # requests that tell how many more can be afforded
_FEWEST_TOKENS = 16  # per rollout, however little time there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds that sampling takes at the recipe's batch."""

    prefill: float  # of a step's prompts, nothing cached
    prompt_tokens: int  # of those prompts together
    decode_step: float  # for one more token of every rollout of a step
    rollouts: int  # that were measured together
    rollouts_at_once: int  # of the recipe

    @property
    def measured(self) -> str:
        """What the speed comes from."""
        of = f" of {number(self.rollouts_at_once)}" if self.rollouts < self.rollouts_at_once else ""
        return f"rollouts measured with {number(self.rollouts)}{of} at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Rollouts of the recipe's own law."""

    groups: tuple[Group, ...]
    limit: int  # tokens per rollout: sampling.max_new_tokens where time allowed
    whole: bool  # whether they could go as far as the recipe lets them
    seconds: float

    @property
    def lengths(self) -> list[int]:
        """Sampled tokens of every rollout."""
        return [completion_length(group, member) for group in self.groups for member in group.members]


async def measure_speed(config: RunConfig, policy: Policy, tasks: Sequence[Task], *, seconds: float) -> Speed:
    """Returns what sampling the groups of `tasks`, the prompts of one step, takes here.

    Prompts and rollouts are each measured for about `seconds` at most, as far as a few of them can tell.
    """
    prompts = [policy.renderer.prompt(task.messages) for task in tasks]
    samples = config.rollout.samples_per_prompt
    one = GenerateRequest(
        id="", prompt_ids=prompts[0], max_tokens=1, temperature=config.sampling.temperature, seed=config.seed
    )
    await policy.engine.ready()
    cold = [replace(one, id=f"prefill/{index}", prompt_ids=prompt) for index, prompt in enumerate(prompts)]
    few = await _seconds(policy, cold[:_FEW])
    more = cold[_FEW:][: _affordable(few, seconds)]
    prefilled = cold[: _FEW + len(more)]
    prefill = few + (await _seconds(policy, more) if more else 0.0)
    tokens = min(_SPEED_TOKENS, config.sampling.max_new_tokens)
    at_once = min(config.engine.max_running, len(prompts) * samples)
    running = [
        replace(request, id=f"speed/{index}/{request.id}", max_tokens=tokens)
        for index in range(samples)
        for request in prefilled
    ][:at_once]
    took, count = await _seconds(policy, running[:_FEW]), len(running[:_FEW])
    if (wider := min(len(running), _affordable(took, seconds))) > count:
        took, count = await _seconds(policy, running[:wider]), wider
    waves = math.ceil(len(prompts) * samples / at_once)
    return Speed(
        prefill=prefill * len(cold) / len(prefilled),
        prompt_tokens=sum(map(len, prompts)),
        decode_step=waves * took / tokens * at_once / count,
        rollouts=count,
        rollouts_at_once=at_once,
    )


def _affordable(few: float, seconds: float) -> int:
    """Returns how many requests `seconds` allow where a few take `few`."""
    return int(_FEW * seconds / few)


async def _seconds(policy: Policy, requests: Sequence[GenerateRequest]) -> float:
    began = time.perf_counter()
    await all_of(policy.engine.generate(request) for request in requests)
    return time.perf_counter() - began


def affordable(*, prompts: int, max_new_tokens: int, decode_step: float, seconds: float) -> tuple[int, int]:
    """Returns how many prompts to sample groups of and how many tokens per rollout, within `seconds`.

    All prompts of a step at full length if that fits, else fewer prompts, else fewer tokens of one.

    >>> affordable(prompts=8, max_new_tokens=100, decode_step=0.1, seconds=20)
    (8, 100)
    >>> affordable(prompts=8, max_new_tokens=1000, decode_step=0.1, seconds=25)
    (2, 1000)
    >>> affordable(prompts=8, max_new_tokens=10_000, decode_step=0.1, seconds=20)
    (1, 1600)
    """
    tokens = prompts * seconds / decode_step  # of one group's rollouts
    if tokens >= max_new_tokens:
        return min(prompts, int(tokens // max_new_tokens)), max_new_tokens
    return 1, min(max_new_tokens, max(_FEWEST_TOKENS, int(tokens)))


async def sample(
    config: RunConfig,
    policy: Policy,
    verifier: Verifier,
    tasks: Sequence[Task],
    *,
    limit: int,
    terminal: Terminal,
) -> Sample:
    """Returns a group of rollouts for each of `tasks`, of at most `limit` tokens each, judged."""
    rollouter = Rollouter(
        policy.engine,
        policy.renderer,
        verifier,
        samples_per_prompt=config.rollout.samples_per_prompt,
        temperature=config.sampling.temperature,
        max_new_tokens=limit,
        seed=config.seed,
    )
    began = time.perf_counter()
    with terminal.phase("sampling", len(tasks) * config.rollout.samples_per_prompt) as phase:
        groups = await rollouter.collect(tasks, step=0, progress=phase.advance)
    return Sample(
        groups=tuple(groups),
        limit=limit,
        whole=limit == config.sampling.max_new_tokens,
        seconds=time.perf_counter() - began,
    )
