"""Rounds of sampling and scoring through the engine's own face, timed from outside.

One round has prompts that no round had before, so that nothing is cached:

    prefill     every prompt, one token each
    sample one  one sequence from the first prompt, which is cached by then
    sample all  the batch, from the cached prompts: decode steps and nothing else
    score       random continuations of the cached prompts, which the engine has not decoded
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnpoint.diagnosis.rows import Shape
from turnpoint.engine.engine import TorchEngine
from turnpoint.engine.stats import EngineStats
from turnpoint.protocols import GenerateRequest, ScoreRequest
from turnpoint.rollout.concurrency import all_of
from turnpoint.types import TokenIds, token_array

_FEW = 8  # tokens and sequences that tell how much more can be afforded


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much of what was asked for a round does."""

    prompts: int  # distinct ones
    at_once: int  # sequences that are sampled together
    one_tokens: int  # of the one sequence
    batch_tokens: int  # of each sequence of the batch
    scored: int  # sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one call of the engine for a batch took, and what its counters say."""

    seconds: float
    processor: float  # seconds of all of this process's threads
    stats: EngineStats


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRound:
    """One round; see above."""

    prefill: Timed
    one: Timed
    batch: Timed
    score: Timed


class Sampling:
    """Work of one shape for one engine, with random tokens."""

    def __init__(self, engine: TorchEngine, shape: Shape, *, vocab_size: int, temperature: float) -> None:
        self._engine = engine
        self._shape = shape
        self._temperature = temperature
        self._vocab_size = vocab_size
        self._draw = np.random.default_rng(0)
        self._asked = 0

    async def extent(self, *, at_once: int, seconds: float) -> Extent:
        """Returns what a round can do when each of its four parts may take about `seconds`; also warms up."""
        shape = self._shape
        few = await self.round(
            Extent(
                prompts=1,
                at_once=at_once,
                one_tokens=min(_FEW, shape.new_tokens),
                batch_tokens=min(_FEW, shape.new_tokens),
                scored=min(_FEW, shape.prompts * shape.samples),
            )
        )

        def affordable(timed: Timed, done: int, most: int) -> int:
            return max(min(done, most), min(most, int(done * seconds / timed.seconds)))

        return Extent(
            prompts=affordable(few.prefill, 1, min(shape.prompts, at_once)),
            at_once=at_once,
            one_tokens=affordable(few.one, _FEW, shape.new_tokens),
            batch_tokens=affordable(few.batch, _FEW, shape.new_tokens),
            scored=affordable(few.score, _FEW, shape.prompts * shape.samples),
        )

    async def round(self, extent: Extent) -> SamplingRound:
        """Runs one round on new prompts."""
        prompts = [self._tokens(self._shape.prompt_tokens) for _ in range(extent.prompts)]
        return SamplingRound(
            prefill=await self._sampled(prompts, 1),
            one=await self._sampled(prompts[:1], extent.one_tokens),
            batch=await self.batch(prompts, extent.at_once, extent.batch_tokens),
            score=await self._scored(prompts, extent.scored),
        )

    async def prefilled(self, count: int) -> list[TokenIds]:
        """Returns prompts that the engine has cached."""
        prompts = [self._tokens(self._shape.prompt_tokens) for _ in range(count)]
        await self._sampled(prompts, 1)
        return prompts

    async def batch(self, prompts: Sequence[TokenIds], at_once: int, tokens: int) -> Timed:
        """Samples `tokens` tokens of each of `at_once` sequences, the prompts by turns."""
        return await self._sampled([prompts[row % len(prompts)] for row in range(at_once)], tokens)

    async def _sampled(self, prompts: Sequence[TokenIds], tokens: int) -> Timed:
        requests = [
            GenerateRequest(
                id=f"bench/{self._asked}/{row}",
                prompt_ids=prompt,
                max_tokens=tokens,
                temperature=self._temperature,
            )
            for row, prompt in enumerate(prompts)
        ]
        return await self._timed([lambda it=it: self._engine.generate(it) for it in requests])

    async def _scored(self, prompts: Sequence[TokenIds], count: int) -> Timed:
        requests = [
            ScoreRequest(
                id=f"bench/{self._asked}/{row}",
                token_ids=np.concatenate([prompts[row % len(prompts)], self._tokens(self._shape.new_tokens)]),
                start=self._shape.prompt_tokens,
                temperature=self._temperature,
            )
            for row in range(count)
        ]
        return await self._timed([lambda it=it: self._engine.score(it) for it in requests])

    async def _timed(self, calls: Sequence[Callable[[], Awaitable[object]]]) -> Timed:
        self._asked += 1
        before, began = self._engine.stats, time.perf_counter()
        await all_of([_awaited(call) for call in calls])
        seconds, stats = time.perf_counter() - began, self._engine.stats - before
        return Timed(seconds=seconds, processor=stats.processor, stats=stats)

    def _tokens(self, count: int) -> TokenIds:
        return token_array(self._draw.integers(self._vocab_size, size=count))


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()
