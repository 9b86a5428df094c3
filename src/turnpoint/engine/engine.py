"""The engine as callers see it: requests in, completions out, batched behind their backs.

generate / score -> lane -> one step of its worker at a time -> futures
"""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar, cast

import torch
from torch import Tensor

from turnpoint.engine.lane import Lane, Ticket
from turnpoint.engine.process import start_processes
from turnpoint.engine.requests import check_generate, check_score
from turnpoint.engine.routing import Homes, even_out
from turnpoint.engine.speculation import Speculation
from turnpoint.engine.stats import EngineStats
from turnpoint.engine.weights import copy_weights
from turnpoint.engine.worker import Limits, LocalWorker, Request, Result, Worker
from turnpoint.errors import EngineError, WeightSyncError
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Capabilities, Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.types import TokenIds

_T = TypeVar("_T")


class TorchEngine:
    """An `Engine` and `WeightReceiver` around a `Decoder`; the same code on CPU and CUDA.

    `decode` turns sampled ids into text. `max_running`: sequences that decode at the same time.
    `max_step_tokens`: tokens through the network in one step. `cache_tokens`: tokens whose keys and values
    stay for later requests, 0 for none. `workers`: 1 computes in this process, more in as many others, which
    divide threads, running sequences and cached tokens between them and share the weights of `decoder`.
    `speculation`: who drafts, how deep; the law stays what it is. The same requests submitted in the same
    order, with answers awaited in the same order, give the same bits on a CPU, unless depths are chosen by
    measured time. `pack`: whether a CPU keeps the weights of linear layers once more, in the order in which
    it reads them; little is lost without where nothing is sampled. It serves one event loop at a time, one
    after another as they come.

    Does not spread over devices. Raises EngineError for several workers around a decoder that is not on the
    CPU, or that cannot be sent to them.
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
        workers: int = 1,
        pack: bool = True,
        speculation: Speculation | None = None,
    ) -> None:
        self._decoder = decoder
        self.speculation = speculation
        self._capabilities = Capabilities(
            name="turnpoint",
            context_length=context_length,
            entropy=True,
            max_top_k=decoder.vocab_size,
            score_temperature=True,
            prefix_cache=cache_tokens > 0,
        )
        if workers > 1 and decoder.device.type != "cpu":
            raise EngineError(f"engine.workers = {workers}: a model on {decoder.device} has one; take 1")
        limits = Limits(
            max_running=-(-max_running // workers),
            max_step_tokens=max_step_tokens,
            cache_tokens=cache_tokens // workers,
        )
        serve = functools.partial(
            LocalWorker,
            decode=decode,
            context_length=context_length,
            limits=limits,
            pack=pack,
            speculation=speculation,
        )
        self.threads = max(1, torch.get_num_threads() // workers)  # of each worker
        serving: Sequence[Worker] = (
            [serve(decoder)]
            if workers == 1
            else start_processes(
                workers,
                decoder,
                serve,
                threads=self.threads,
                beside=speculation.learning if speculation else None,
            )
        )
        self._lanes = [Lane(worker, before_step=self._even_out) for worker in serving]
        self._homes = Homes()
        self._version = 0

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can serve."""
        return self._capabilities

    @property
    def workers(self) -> int:
        """How many processes compute; 1: this one."""
        return len(self._lanes)

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made; several workers' added up."""
        return functools.reduce(operator.add, [lane.stats for lane in self._lanes])

    async def ready(self) -> None:
        """Returns once all workers can serve, which they need not be waited for to be asked."""
        await asyncio.gather(*[lane.ready() for lane in self._lanes])

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns one completion; raises EngineError naming the request. Cancelling frees its row."""
        check_generate(request, capabilities=self._capabilities, vocab_size=self._decoder.vocab_size)
        return cast(Completion, await self._serve(request))

    async def score(self, request: ScoreRequest) -> Scores:
        """Returns scores of given tokens; raises EngineError naming the request.

        What the prefix cache holds is not computed again, so a rollout of this engine is scored from the
        states it was decoded with.
        """
        check_score(request, capabilities=self._capabilities, vocab_size=self._decoder.vocab_size)
        return cast(Scores, await self._serve(request))

    def load_weights(self, state: Mapping[str, Tensor], version: int) -> str:
        """Replaces all trained weights, drops everything computed with the old ones, returns the checksum.

        Raises WeightSyncError as `copy_weights` does, and while requests are in flight.
        """
        if in_flight := sum(lane.in_flight for lane in self._lanes):
            raise WeightSyncError(
                f"{in_flight} requests are in flight at version {self._version}; "
                f"wait for them before loading version {version}"
            )
        return self._changed(lambda: copy_weights(self._decoder.model, state), version)

    def forget(self) -> None:
        """Drops all that was computed, requests in flight too; what follows is rounded as at the start."""
        self._changed(lambda: None, self._version)

    def _changed(self, change: Callable[[], _T], version: int) -> _T:
        with ExitStack() as stopped:
            for lane in self._lanes:  # a step may still run for requests that were cancelled
                stopped.enter_context(lane.computing)
            changed = change()
            self._version = version
            self._homes.clear()
            for lane in self._lanes:
                lane.renew(version)
        return changed

    async def close(self) -> None:
        """Fails what is in flight and ends threads and processes; safe to call twice."""
        await asyncio.gather(*[lane.close() for lane in self._lanes])

    async def _serve(self, request: Request) -> Result:
        answer = asyncio.get_running_loop().create_future()
        ticket = self._ticket(request, answer)
        ticket.lane.submit(ticket)
        try:
            return await answer
        finally:
            ticket.lane.withdraw(ticket)

    def _ticket(self, request: Request, answer: asyncio.Future[Result]) -> Ticket:
        match request:
            case GenerateRequest():
                ids, tokens = request.prompt_ids, request.max_tokens
            case ScoreRequest():
                ids, tokens = request.token_ids, len(request.token_ids) - request.start
        if len(self._lanes) == 1:
            return Ticket(request, answer, prefix=b"", tokens=tokens, lane=self._lanes[0])
        loads = [lane.load for lane in self._lanes]
        prefix, place = self._homes.find(ids.tobytes(), otherwise=loads.index(min(loads)))
        return Ticket(request, answer, prefix=prefix, tokens=tokens, lane=self._lanes[place])

    def _even_out(self) -> None:
        even_out(self._lanes)
