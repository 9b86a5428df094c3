"""What a long queue costs: processor time per served token with 100 and with 10,000 requests waiting.

    python -m benchmarks.queue [--rounds 20] [--served 256] [--work groups ...]

Whoever is answered asks again at once, so a queue stays as long as it is. Each length has a process and an
engine of its own; they are timed in turn, a few steps at a time, so that a busy machine hits both. The model
is a random Llama of two layers and 64 dimensions, whose steps cost little beside what is done for each
request; with a real model the same is a smaller share. At most 64 run. Prints one JSON line per length, with
what the engine counted, and one with the median of the ratios. One thread, processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.common import emit, facts, median_ratio
from turnpoint.engine import EngineStats, TorchEngine
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import GenerateRequest, ScoreRequest
from turnpoint.types import TokenIds, token_array

QUEUES = (100, 10_000)
COUNTS = ("steps", "sampled", "prefilled", "cached", "scored")
RUNNING = 64
VOCABULARY = 128
PROMPT_TOKENS, NEW_TOKENS = 32, range(8, 25)  # new tokens differ, so that rows end at different steps
SHARED_TOKENS = 24  # of the prompts that begin alike

# samples of each prompt, whether all prompts begin alike, whether every rollout is scored
WORK = {
    "alone": (1, False, False),
    "groups": (8, False, False),
    "alike": (1, True, False),  # the same examples before every problem
    "scored": (8, False, True),
}


def make_engine() -> TorchEngine:
    """Returns an engine around a small random model."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    decoder = Decoder(transformers.LlamaForCausalLM(config), vocab_size=VOCABULARY)
    return TorchEngine(
        decoder, decode=lambda ids: "", context_length=256, max_running=RUNNING, cache_tokens=8192
    )


def prompt(number: int, alike: bool) -> TokenIds:
    """Returns the prompt of a group."""
    ids = np.random.default_rng(number).integers(0, VOCABULARY, PROMPT_TOKENS)
    if alike:
        ids[:SHARED_TOKENS] = np.arange(SHARED_TOKENS)
    return token_array(ids)


class Clients:
    """As many of them as should run and wait; each asks again as soon as it is answered."""

    def __init__(self, engine: TorchEngine, *, samples: int, alike: bool, scored: bool) -> None:
        self.served = 0
        self._engine = engine
        self._samples, self._alike, self._scored = samples, alike, scored
        self._numbers = itertools.count()
        self._awaited = 0
        self._reached = asyncio.Event()

    async def ask_forever(self) -> None:
        """Asks for rollouts, and for their scores where the work says so."""
        while True:
            number = next(self._numbers)
            ids = prompt(number // self._samples, self._alike)
            new_tokens = NEW_TOKENS[number % len(NEW_TOKENS)]
            request = GenerateRequest(id=str(number), prompt_ids=ids, max_tokens=new_tokens)
            completion = await self._engine.generate(request)
            if self._scored:
                path = np.concatenate([ids, completion.token_ids])
                await self._engine.score(ScoreRequest(id=str(number), token_ids=path, start=PROMPT_TOKENS))
            self.served += 1
            if self.served >= self._awaited:
                self._reached.set()

    async def until(self, served: int) -> None:
        """Returns when so many rollouts are done."""
        self._awaited = served
        self._reached.clear()
        await self._reached.wait()


def serve(line: Connection, queue: int, work: tuple[int, bool, bool]) -> None:
    """Keeps a queue; for each count of rollouts received, serves them and sends what that took, until 0."""
    torch.set_num_threads(1)
    asyncio.run(_serve(line, queue, work))


async def _serve(line: Connection, queue: int, work: tuple[int, bool, bool]) -> None:
    samples, alike, scored = work
    engine = make_engine()
    clients = Clients(engine, samples=samples, alike=alike, scored=scored)
    tasks = [asyncio.create_task(clients.ask_forever()) for _ in range(queue + RUNNING)]
    await clients.until(8 * RUNNING)  # the cache is full, and rows end at different steps
    line.send(None)
    while served := line.recv():  # waiting here stops the loop, and with it the engine
        before, began = engine.stats, time.process_time()
        await clients.until(clients.served + served)
        line.send((time.process_time() - began, engine.stats - before))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.close()


def measure(work: str, rounds: int, served: int) -> dict[int, list[tuple[float, EngineStats]]]:
    """Returns processor seconds and counts of each round, by length of the queue."""
    context = multiprocessing.get_context("spawn")
    lines: dict[int, Connection] = {}
    for queue in QUEUES:
        lines[queue], theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, queue, WORK[work]), daemon=True).start()
    for line in lines.values():
        line.recv()
    results: dict[int, list[tuple[float, EngineStats]]] = {queue: [] for queue in QUEUES}
    for number in range(rounds):
        for queue in QUEUES if number % 2 else reversed(QUEUES):
            lines[queue].send(served)
            results[queue].append(lines[queue].recv())
    for line in lines.values():
        line.send(0)
    return results


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--served", type=int, default=256, help="rollouts in a round")
    parser.add_argument("--work", nargs="*", choices=WORK, default=list(WORK))
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting: dict[str, Any] = {
        "benchmark": "queue",
        "rounds": options.rounds,
        "served": options.served,
        "max_running": RUNNING,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": [NEW_TOKENS[0], NEW_TOKENS[-1]],
        **facts(),
    }
    for work in options.work:
        results = measure(work, options.rounds, options.served)
        costs = {
            queue: [seconds / counted.sampled for seconds, counted in rounds]
            for queue, rounds in results.items()
        }
        for queue, rounds in results.items():
            total = sum((counted for _, counted in rounds), EngineStats())
            counts = {name: getattr(total, name) for name in COUNTS}
            cost = round(1e6 * statistics.median(costs[queue]), 1)
            emit(**setting, work=work, queue=queue, processor_microseconds_per_token=cost, **counts)
        short, long = (costs[queue] for queue in QUEUES)
        ratio = median_ratio(long, short)
        emit(**setting, work=work, processor_time_at_10000_over_100=round(ratio, 3))


if __name__ == "__main__":
    main()
