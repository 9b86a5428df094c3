"""The fake engine keeps the contract of an engine, and its sampled law is the law it states."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from turnpoint.engine.fake import FakeEngine, letters
from turnpoint.errors import EngineError, WeightSyncError
from turnpoint.protocols import Completion, Engine, GenerateRequest, ScoreRequest, Scores, WeightReceiver
from turnpoint.types import FinishReason, token_array


def generate(
    engine: FakeEngine, id: str = "r", prompt: tuple[int, ...] = (1, 2), **options: Any
) -> Completion:
    options = {"max_tokens": 8, **options}
    return asyncio.run(
        engine.generate(GenerateRequest(id=id, prompt_ids=token_array(list(prompt)), **options))
    )


def score(engine: FakeEngine, ids: tuple[int, ...], start: int = 1, **options: Any) -> Scores:
    return asyncio.run(
        engine.score(ScoreRequest(id="s", token_ids=token_array(list(ids)), start=start, **options))
    )


def test_implements_the_seams() -> None:
    engine: Engine = FakeEngine()
    receiver: WeightReceiver = FakeEngine()
    assert (engine.capabilities.name, engine.capabilities.max_top_k) == ("fake", 5)
    assert receiver.load_weights({"bias": torch.zeros(5)}, 1)


def test_law_is_a_law_that_depends_on_the_whole_prefix() -> None:
    engine = FakeEngine()
    law = engine.law([1, 2, 3])
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    assert (law > 0).all()
    for other in ([0, 2, 3], [1, 2], [1, 2, 3, 0]):
        assert not np.allclose(law, engine.law(other))
    assert not np.allclose(law, FakeEngine(law_seed=1).law([1, 2, 3]))
    flat = engine.law([1, 2, 3], temperature=2.0)
    np.testing.assert_allclose(flat, law**0.5 / (law**0.5).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_law_is_the_exact_law(temperature: float) -> None:
    engine, draws = FakeEngine(vocab_size=3), 600

    async def sample(i: int) -> tuple[int, ...]:
        request = GenerateRequest(
            id=str(i), prompt_ids=token_array([1, 2]), max_tokens=2, temperature=temperature
        )
        return tuple((await engine.generate(request)).token_ids.tolist())

    async def sample_all() -> list[tuple[int, ...]]:
        return [await sample(i) for i in range(draws)]

    counts = Counter(asyncio.run(sample_all()))
    chi_square = 0.0
    for first, second in itertools.product(range(3), repeat=2):
        law = engine.law([1, 2], temperature=temperature)[first]
        law *= engine.law([1, 2, first], temperature=temperature)[second]
        chi_square += (counts[first, second] - draws * law) ** 2 / (draws * law)
    assert chi_square < 26.1  # 8 degrees of freedom, p = 0.001; draws are fixed by their ids


def test_score_agrees_with_sampling_and_with_the_law() -> None:
    engine = FakeEngine()
    done = generate(engine, temperature=0.7)
    ids = (1, 2, *done.token_ids.tolist())
    scores = score(engine, ids, start=2, temperature=0.7, entropy=True, top_k=2)
    np.testing.assert_array_equal(scores.logprobs, done.logprobs)
    assert scores.entropy is not None
    assert scores.top_ids is not None
    assert scores.top_logprobs is not None
    for i in range(len(done.token_ids)):
        law = engine.law(list(ids[: 2 + i]), temperature=0.7)
        assert scores.logprobs[i] == pytest.approx(math.log(law[ids[2 + i]]), rel=1e-6)
        assert scores.entropy[i] == pytest.approx(-(law * np.log(law)).sum(), rel=1e-6)
        assert scores.top_ids[i].tolist() == np.argsort(-law)[:2].tolist()
        np.testing.assert_allclose(scores.top_logprobs[i], np.log(np.sort(law)[::-1][:2]), rtol=1e-6)


def test_what_was_not_asked_is_none() -> None:
    scores = score(FakeEngine(), (1, 2, 3))
    assert (scores.entropy, scores.top_ids, scores.top_logprobs) == (None, None, None)
    assert len(score(FakeEngine(), (1, 2, 3), start=3).logprobs) == 0


def test_draws_depend_on_seed_and_request_alone() -> None:
    async def crowd() -> list[Completion]:
        engine = FakeEngine()
        requests = [
            GenerateRequest(id=f"{i}", prompt_ids=token_array([1, 2]), max_tokens=8) for i in range(6)
        ]
        return await asyncio.gather(*(engine.generate(request) for request in requests))

    together = asyncio.run(crowd())
    for i, done in enumerate(together):
        assert generate(FakeEngine(), id=f"{i}").token_ids.tolist() == done.token_ids.tolist()
    assert len({tuple(done.token_ids.tolist()) for done in together}) > 1
    first = generate(FakeEngine(), id="0")
    assert generate(FakeEngine(), id="0", seed=1).token_ids.tolist() != first.token_ids.tolist()


def test_temperature_zero_takes_the_likeliest() -> None:
    engine = FakeEngine()
    done = generate(engine, temperature=0.0)
    ids = [1, 2]
    for token in done.token_ids.tolist():
        assert token == engine.law(ids).argmax()
        ids.append(token)
    assert done.logprobs.tolist() == [0.0] * 8


def test_stop_token_is_an_action_but_no_text() -> None:
    free = generate(FakeEngine()).token_ids.tolist()
    stop = free[3]
    end = free.index(stop) + 1
    done = generate(FakeEngine(), stop_ids=frozenset({stop}))
    assert done.token_ids.tolist() == free[:end]
    assert (done.text, done.finish) == (letters(token_array(free[: end - 1])), FinishReason.STOP)


def test_stop_string_over_tokens_cuts_only_the_text() -> None:
    free = generate(FakeEngine())
    stop = free.text[3:5]
    at = free.text.index(stop)
    done = generate(FakeEngine(), stop_strings=(stop, "zz"))
    assert done.token_ids.tolist() == free.token_ids.tolist()[: at + 2]
    assert (done.text, done.finish) == (free.text[:at], FinishReason.STOP)


def test_limits_are_length() -> None:
    done = generate(FakeEngine(), max_tokens=3)
    assert (len(done.token_ids), done.finish) == (3, FinishReason.LENGTH)
    done = generate(FakeEngine(context_length=6), max_tokens=100)
    assert (len(done.token_ids), done.finish) == (4, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [((), 1), ((1,), 0), ((5,), 1), ((-1,), 1), ((1, 1, 1, 1), 1), ((1,) * 9, 1)]
)
def test_refuses_what_it_cannot_generate(prompt: tuple[int, ...], max_tokens: int) -> None:
    with pytest.raises(EngineError, match="request odd"):
        generate(FakeEngine(context_length=4), id="odd", prompt=prompt, max_tokens=max_tokens)


def test_refuses_what_it_cannot_score() -> None:
    for ids, start, options in [
        ((1, 2), 0, {}),
        ((1, 2), 3, {}),
        ((1, 9), 1, {}),
        ((1, 2), 1, {"top_k": 6}),
        ((1, 2), 1, {"temperature": 0.0}),
    ]:
        with pytest.raises(EngineError, match="request s"):
            score(FakeEngine(), ids, start, **options)


def test_cached_tokens_are_those_of_an_earlier_prompt_or_rollout() -> None:
    engine = FakeEngine()
    first = generate(engine, id="first")
    assert first.cached_tokens == 0
    assert generate(engine, id="same").cached_tokens == 1  # the last prompt token is always computed
    fork = (1, 2, *first.token_ids[:3].tolist())
    assert generate(engine, id="fork", prompt=(*fork, 0)).cached_tokens in (5, 6)
    assert score(engine, (1, 2, *first.token_ids.tolist())).cached_tokens == 1 + len(first.token_ids)
    assert score(engine, (1, 2, 0, 3, 1)).cached_tokens in (2, 3)
    assert score(engine, (1, 2, 0, 3, 1)).cached_tokens == 4  # what was scored is cached too
    engine.load_weights({"bias": torch.zeros(5)}, 1)
    assert generate(engine, id="again").cached_tokens == 0


def test_faults_come_when_asked() -> None:
    engine = FakeEngine(failing={"bad"}, delays={"slow": 0.05})

    async def run() -> list[str]:
        order: list[str] = []

        async def one(id: str) -> None:
            await engine.generate(GenerateRequest(id=id, prompt_ids=token_array([1]), max_tokens=4))
            order.append(id)

        await asyncio.gather(one("slow"), one("fast"))
        with pytest.raises(EngineError, match="request bad"):
            await one("bad")
        return order

    assert asyncio.run(run()) == ["fast", "slow"]
    assert engine.started == ["slow", "fast", "bad"]
    assert engine.running == set()


def test_cancelling_frees_the_request() -> None:
    engine = FakeEngine(delays={"r": 60.0})

    async def run() -> None:
        request = GenerateRequest(id="r", prompt_ids=token_array([1]), max_tokens=4)
        task = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        assert engine.running == {"r"}
        with pytest.raises(WeightSyncError, match="1 requests are running"):
            engine.load_weights({"bias": torch.zeros(5)}, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert engine.running == set()


def test_new_weights_change_law_and_version() -> None:
    engine = FakeEngine()
    before = engine.law([1, 2])
    bias = torch.tensor([3.0, 0.0, 0.0, 0.0, 0.0])
    checksum = engine.load_weights({"bias": bias}, 7)
    tilted = before * np.exp(bias.numpy())
    np.testing.assert_allclose(engine.law([1, 2]), tilted / tilted.sum())
    assert generate(engine).policy_version == score(engine, (1, 2)).policy_version == 7
    assert engine.load_weights({"bias": bias.clone()}, 8) == checksum
    assert engine.load_weights({"bias": bias.flip(0)}, 9) != checksum


def test_refuses_weights_that_are_not_its_own() -> None:
    for state in [
        {},
        {"bias": torch.zeros(4)},
        {"bias": torch.zeros(5), "more": torch.zeros(1)},
        {"bias": torch.full((5,), math.nan)},
    ]:
        with pytest.raises(WeightSyncError, match="bias"):
            FakeEngine().load_weights(state, 1)
