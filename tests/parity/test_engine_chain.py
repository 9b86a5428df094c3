"""The engine's law is the decoder's own, link by link, for every architecture, in float32.

    prefill in one piece = prefill in pieces = decode = fork of a rollout = the decoder without any cache

and whether siblings read what they share in one place or each for itself.

Prompts are longer than Gemma's window, so that its sliding layers forget.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.engine.serve import ask, asks, generate, law, logprobs_of, make_engine, prompt, score
from tests.tiny import ARCHITECTURES, GEMMA_WINDOW, tiny_decoder, tiny_model
from turnpoint.engine import batch
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Completion
from turnpoint.types import TokenIds

TOLERANCE = 2e-5  # nats; the order of float32 sums differs between paths, nothing else does
LENGTH = 3 * GEMMA_WINDOW

pytestmark = pytest.mark.parametrize("architecture", ARCHITECTURES)


@pytest.fixture(params=["trunks of any size", "no trunks"], autouse=True)
def trunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every test with whatever can be shared read in one place, and with nothing."""
    monkeypatch.setattr(batch, "CALL_BYTES", 1 if request.param == "trunks of any size" else 1 << 40)


def path(length: int, completion: Completion) -> TokenIds:
    return np.concatenate([prompt(length), completion.token_ids])


def assert_same(left: list[Completion], right: list[Completion]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 5, 8, 1000])
def test_prefill_in_pieces_equals_the_decoder(architecture: str, chunk: int) -> None:
    decoder = tiny_decoder(architecture)
    scores = score(make_engine(decoder, max_step_tokens=chunk), prompt(LENGTH))
    np.testing.assert_allclose(scores.logprobs, logprobs_of(decoder, prompt(LENGTH), 1), atol=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_decode_equals_prefill_equals_the_decoder(architecture: str, temperature: float) -> None:
    decoder = tiny_decoder(architecture)
    engine, fresh = make_engine(decoder), make_engine(decoder)
    requests = asks(6, prompt(LENGTH), max_tokens=40, temperature=temperature)
    for completion in generate(engine, *requests):
        ids = path(LENGTH, completion)
        exact = logprobs_of(decoder, ids, LENGTH, temperature)
        from_cache = score(engine, ids, LENGTH, temperature=temperature)
        prefilled = score(fresh, ids, LENGTH, temperature=temperature)
        for logprobs in (completion.logprobs, from_cache.logprobs, prefilled.logprobs):
            np.testing.assert_allclose(logprobs, exact, atol=TOLERANCE)


def test_a_fork_at_every_position_equals_a_fresh_prefill(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    engine, fresh = make_engine(decoder), make_engine(decoder, cache_tokens=0)
    roots = generate(engine, *asks(2, prompt(LENGTH), max_tokens=20))
    for root in roots:  # what they share ends at a border in the cache; the forks also lie on it
        ids = path(LENGTH, root)
        forks = [ask(f"fork {at}", ids[:at], max_tokens=4) for at in range(1, len(ids))]
        before = engine.stats
        assert_same(generate(engine, *forks), generate(fresh, *forks))
        assert (engine.stats - before).prefilled == 0
    assert fresh.stats.cached == 0


def test_forks_of_forks(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    engine = make_engine(decoder)
    ids = prompt(5)
    for depth in range(12):
        request = ask(f"depth {depth}", ids, max_tokens=6)
        completions = generate(engine, request)
        assert_same(completions, generate(make_engine(decoder), request))
        ids = np.concatenate([ids, completions[0].token_ids[: 1 + depth % 5]])


def test_many_equal_each_alone(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    requests = [ask(f"r{i}", prompt(3 + 2 * i, i % 3), max_tokens=5 + i) for i in range(12)]
    together = generate(make_engine(decoder), *requests)
    crowded = generate(make_engine(decoder, max_running=3, max_step_tokens=7), *requests)
    alone = [generate(make_engine(decoder), request)[0] for request in requests]
    assert_same(together, alone)
    assert_same(crowded, alone)


@pytest.mark.parametrize("cache_tokens", [0, LENGTH - 1, LENGTH + 7, 100])
def test_the_cache_changes_nothing_however_small(architecture: str, cache_tokens: int) -> None:
    decoder = tiny_decoder(architecture)
    requests = [ask(f"r{i}", prompt(LENGTH, i % 2)[: LENGTH - i % 4], max_tokens=9) for i in range(12)]
    expected = generate(make_engine(decoder), *requests)
    engine = make_engine(decoder, cache_tokens=cache_tokens)
    assert_same(generate(engine, *requests), expected)
    assert_same(generate(engine, *requests[::-1])[::-1], expected)


def test_new_weights_make_an_old_cache_unreachable(architecture: str) -> None:
    engine = make_engine(tiny_decoder(architecture))
    generate(engine, *asks(3, prompt(LENGTH)))
    engine.load_weights(dict(tiny_model(architecture, seed=1).named_parameters()), 1)
    before, decoder = engine.stats, tiny_decoder(architecture, seed=1)
    new = generate(engine, *asks(3, prompt(LENGTH)))
    assert (engine.stats - before).prefilled == LENGTH
    for completion in new:
        exact = logprobs_of(decoder, path(LENGTH, completion), LENGTH)
        np.testing.assert_allclose(completion.logprobs, exact, atol=TOLERANCE)


def test_the_sampled_law_is_the_law(architecture: str) -> None:
    """Two tokens over a vocabulary of four: all 16 outcomes are enumerated by hand."""
    vocab, temperature, count = 4, 1.5, 2000
    model = tiny_model(architecture, vocab_size=vocab)
    decoder = Decoder(model, vocab_size=vocab)
    start = np.array([2, 0, 3], dtype=np.int32)
    exact = {
        pair: float(
            torch.exp(
                law(decoder, start, temperature)[-1, pair[0]]
                + law(decoder, [*start.tolist(), pair[0]], temperature)[-1, pair[1]]
            )
        )
        for pair in itertools.product(range(vocab), repeat=2)
    }
    assert sum(exact.values()) == pytest.approx(1, abs=1e-5)
    engine = make_engine(decoder, decode=lambda ids: "", max_running=500)
    completions = generate(engine, *asks(count, start, max_tokens=2, temperature=temperature))
    seen = [tuple(completion.token_ids.tolist()) for completion in completions]
    chi_square = sum((seen.count(pair) - count * p) ** 2 / (count * p) for pair, p in exact.items())
    assert chi_square < 37.7  # 0.999 quantile, 15 degrees of freedom
    for pair, completion in zip(seen, completions, strict=True):
        assert completion.logprobs.sum() == pytest.approx(np.log(exact[pair]), abs=TOLERANCE)
