"""The engine as callers see it: requests in, completions out, batched behind their backs.

    generate / score -> inbox -> [pump] one step at a time in a thread -> futures

The event loop owns requests and futures; the thread owns everything computed. They meet between steps: the
pump hands finished work to whoever waits, lets them run once, so that what they ask for next is in time for
the next step, and starts it. Verifiers and environments run while the thread computes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from torch import Tensor

from turnpoint.engine.requests import check_generate, check_score
from turnpoint.engine.runner import Outcome, Runner
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.engine.stats import EngineStats
from turnpoint.engine.weights import copy_weights
from turnpoint.errors import EngineError, WeightSyncError
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Capabilities, Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.types import TokenIds


class TorchEngine:
    """An `Engine` and `WeightReceiver` around a `Decoder`; the same code on CPU and CUDA.

    `decode` turns sampled ids into text. `max_running`: sequences that decode at the same time.
    `max_step_tokens`: tokens through the network in one step. `cache_tokens`: tokens whose keys and values
    stay for later requests, 0 for none. The same requests submitted in the same order give the same bits on
    a CPU. It serves one event loop at a time, one after another as they come.

    Does not cut the law (top-k, top-p), and does not spread over devices.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        decode: Callable[[TokenIds], str],
        context_length: int,
        max_running: int = 128,
        max_step_tokens: int = 2048,
        cache_tokens: int = 65_536,
    ) -> None:
        self._decoder = decoder
        self._decode = decode
        self._capabilities = Capabilities(
            name="turnpoint",
            context_length=context_length,
            entropy=True,
            max_top_k=decoder.vocab_size,
            score_temperature=True,
            prefix_cache=cache_tokens > 0,
        )
        self._runner = Runner(
            decoder, max_running=max_running, max_step_tokens=max_step_tokens, cache_tokens=cache_tokens
        )
        self._inbox: list[Generation | Scoring] = []  # what the next step takes in
        self._waiters: dict[Generation | Scoring, asyncio.Future[Completion | Scores]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turnpoint-engine")
        self._computing = threading.Lock()  # held by a step and by whoever changes the weights
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can serve."""
        return self._capabilities

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        return self._runner.stats

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns one completion; raises EngineError naming the request. Cancelling frees its row."""
        check_generate(request, capabilities=self._capabilities, vocab_size=self._decoder.vocab_size)
        sequence = Generation(request, decode=self._decode, context_length=self._capabilities.context_length)
        return cast(Completion, await self._serve(sequence))

    async def score(self, request: ScoreRequest) -> Scores:
        """Returns scores of given tokens; raises EngineError naming the request.

        What the prefix cache holds is not computed again, so a rollout of this engine is scored from the
        states it was decoded with.
        """
        check_score(request, capabilities=self._capabilities, vocab_size=self._decoder.vocab_size)
        return cast(Scores, await self._serve(Scoring(request)))

    def load_weights(self, state: Mapping[str, Tensor], version: int) -> str:
        """Replaces all trained weights, drops everything computed with the old ones, returns the checksum.

        Raises WeightSyncError as `copy_weights` does, and while requests are in flight.
        """
        if self._waiters:
            raise WeightSyncError(
                f"{len(self._waiters)} requests are in flight at version {self._runner.policy_version}; "
                f"wait for them before loading version {version}"
            )
        with self._computing:  # a step may still run for requests that were cancelled
            checksum = copy_weights(self._decoder.model, state)
            self._runner.forget()
            self._runner.policy_version = version
        return checksum

    async def close(self) -> None:
        """Fails what is in flight and ends the thread; safe to call twice."""
        self._closed = True
        for sequence in list(self._waiters):
            self._fail(sequence, EngineError(f"request {sequence.request.id!r}: the engine was closed"))
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])
        self._thread.shutdown(wait=False)

    async def _serve(self, sequence: Generation | Scoring) -> Completion | Scores:
        if self._closed:
            raise EngineError(f"request {sequence.request.id!r}: the engine was closed")
        self._start_pump(sequence.request.id)
        future = asyncio.get_running_loop().create_future()
        self._waiters[sequence] = future
        self._inbox.append(sequence)
        try:
            return await future
        finally:
            sequence.abandoned = True
            self._waiters.pop(sequence, None)

    def _start_pump(self, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        pump = self._pump
        if pump is not None and not pump.done() and not pump.get_loop().is_closed():
            if pump.get_loop() is not loop:
                raise EngineError(f"request {request_id!r}: the engine is serving another event loop")
            return
        self._pump = loop.create_task(self._run_steps())

    async def _run_steps(self) -> None:
        """Runs steps until nothing is left, and hands out what they finish."""
        loop = asyncio.get_running_loop()
        while self._inbox or not self._runner.idle:
            arrived, self._inbox = self._inbox, []
            step = loop.run_in_executor(self._thread, self._step, arrived)
            await asyncio.wait([step])
            if (error := step.exception()) is not None:
                self._fail_all(error)
            else:
                for sequence, result in step.result():
                    self._deliver(sequence, result)
            await asyncio.sleep(0)  # whoever got a result may ask for more before the next step

    def _step(self, arrived: list[Generation | Scoring]) -> list[Outcome]:
        with self._computing:
            try:
                for sequence in arrived:
                    self._runner.submit(sequence)
                return self._runner.step()
            except BaseException:
                self._runner.forget()  # what was half computed must not be read
                raise

    def _deliver(self, sequence: Generation | Scoring, result: Completion | Scores) -> None:
        future = self._waiters.pop(sequence, None)
        if future is not None and not future.done():  # done: cancelled while the step ran
            future.set_result(result)

    def _fail_all(self, cause: BaseException) -> None:
        self._inbox = []
        lost = list(self._waiters)
        for sequence in lost:
            error = EngineError(
                f"request {sequence.request.id!r}: a step of the engine failed, and with it all {len(lost)} "
                f"requests in flight: {type(cause).__name__}: {cause}"
            )
            error.__cause__ = cause
            self._fail(sequence, error)

    def _fail(self, sequence: Generation | Scoring, error: EngineError) -> None:
        future = self._waiters.pop(sequence)
        if not future.done():
            future.set_exception(error)
