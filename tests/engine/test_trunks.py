"""Siblings that read one trunk, through the engine: who leaves, what is evicted, and the same bits again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.engine.serve import ask, asks, generate, make_engine, prompt
from tests.tiny import tiny_decoder
from turnpoint.engine import batch
from turnpoint.engine.engine import TorchEngine
from turnpoint.protocols import Completion

LENGTH = 40


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CALL_BYTES", 1)


def same(left: list[Completion], right: list[Completion], tolerance: float) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=tolerance, rtol=0)


def test_cancelling_siblings_leaves_the_others_as_they_are() -> None:
    requests = [ask("r0", prompt(LENGTH), max_tokens=5), *asks(8, prompt(LENGTH), max_tokens=30)[1:]]

    async def main(engine: TorchEngine) -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await tasks[0]
        for gone in (3, 7):
            tasks[gone].cancel()
        return await asyncio.gather(*[tasks[kept] for kept in (1, 2, 4, 5, 6)])

    left = asyncio.run(main(make_engine()))
    whole = generate(make_engine(), *requests)
    same(left, [whole[kept] for kept in (1, 2, 4, 5, 6)], 2e-5)


@pytest.mark.parametrize("cache_tokens", [0, LENGTH, LENGTH + 20])
def test_what_is_evicted_while_it_is_read_stays_readable(cache_tokens: int) -> None:
    requests = [
        ask(f"{seed}/{i}", prompt(LENGTH, seed), max_tokens=10 + i) for seed in range(4) for i in range(4)
    ]
    engine = make_engine(cache_tokens=cache_tokens, max_running=6)
    same(generate(engine, *requests), generate(make_engine(), *requests), 2e-5)


def test_the_same_requests_in_the_same_order_are_the_same_bits() -> None:
    requests = [
        ask(f"r{i}", prompt(LENGTH, i % 2)[: LENGTH - i % 3], max_tokens=5 + i % 7) for i in range(24)
    ]
    first, second = (generate(make_engine(max_running=10), *requests) for _ in range(2))
    same(first, second, 0)


def test_forks_of_forks_of_one_rollout_share_as_they_did_alone() -> None:
    decoder = tiny_decoder("gemma")  # its windows are shorter than the trunks
    engine, fresh = make_engine(decoder), make_engine(decoder, cache_tokens=0)
    (root,) = generate(engine, ask("root", prompt(LENGTH), max_tokens=40))
    ids = np.concatenate([prompt(LENGTH), root.token_ids])
    forks = [ask(f"{at}/{i}", ids[:at], max_tokens=20) for at in (50, 60, 61, 80) for i in range(3)]
    before = engine.stats
    same(generate(engine, *forks), [generate(fresh, fork)[0] for fork in forks], 2e-5)
    assert (engine.stats - before).prefilled <= 1  # the last token of the rollout had no keys yet
