"""The engine as a whole: counters, stops, limits, randomness, weights."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.bent import Bent, always
from tests.engine.serve import (
    ask,
    asks,
    decode,
    encode,
    generate,
    law,
    logprobs_of,
    make_engine,
    prompt,
    score,
)
from tests.tiny import tiny_decoder, tiny_model
from turnpoint.engine import EngineStats, weights_checksum
from turnpoint.errors import EngineError, WeightSyncError
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import ScoreRequest
from turnpoint.types import FinishReason

# --- one prompt, many samples -------------------------------------------------------------------


@pytest.mark.parametrize("max_running", [3, 128])
def test_the_prompt_of_a_group_is_prefilled_once(max_running: int) -> None:
    engine = make_engine(max_running=max_running)
    completions = generate(engine, *asks(8, prompt(30)))
    assert engine.stats.prefilled == 30
    assert sorted(completion.cached_tokens for completion in completions) == [0] + [30] * 7
    assert engine.stats.cached == 7 * 30
    assert engine.stats.sampled == sum(len(completion.token_ids) for completion in completions) == 64
    # the last token of a completion never goes through the network
    assert engine.stats.decoded == 64 - 8
    assert len({completion.token_ids.tobytes() for completion in completions}) == 8


def test_a_fork_computes_nothing_again() -> None:
    engine = make_engine()
    root = generate(engine, ask("root", prompt(20)))[0]
    before = engine.stats
    path = np.concatenate([prompt(20), root.token_ids[:5]])
    fork = generate(engine, ask("fork", path))[0]
    assert (engine.stats - before).prefilled == 0
    assert fork.cached_tokens == 25
    before = engine.stats
    generate(engine, ask("all", np.concatenate([prompt(20), root.token_ids])))
    assert (engine.stats - before).prefilled == 1  # the last sampled token was never an input


def test_scoring_reads_and_feeds_the_cache() -> None:
    engine = make_engine()
    score(engine, prompt(30), 10)
    assert (engine.stats.prefilled, engine.stats.scored) == (29, 20)
    score(engine, prompt(30), 10)
    assert (engine.stats.prefilled, engine.stats.scored) == (29, 40)
    generate(engine, ask(prompt_ids=prompt(30)))
    assert engine.stats.prefilled == 30


def test_stats_add_up() -> None:
    first, second = EngineStats(steps=1, seconds=0.5), EngineStats(steps=2, sampled=3)
    assert first + second == EngineStats(steps=3, seconds=0.5, sampled=3)
    assert (first + second) - second == first


# --- how a completion ends ----------------------------------------------------------------------


def test_a_stop_token_is_sampled_but_not_shown() -> None:
    engine = make_engine(Bent(always("ab#")).decoder)
    stop = int(encode("#")[0])
    for completion in generate(engine, *asks(20, prompt(5), stop_ids=frozenset({stop}), max_tokens=100)):
        assert completion.finish is FinishReason.STOP
        assert completion.token_ids[-1] == stop
        assert (completion.token_ids[:-1] != stop).all()
        assert completion.text == decode(completion.token_ids[:-1])


def test_a_stop_string_cuts_the_text_and_not_the_ids() -> None:
    engine = make_engine(Bent(always("abc")).decoder)
    for completion in generate(engine, *asks(20, prompt(5), stop_strings=("abba", "cc"), max_tokens=200)):
        assert completion.finish is FinishReason.STOP
        whole = decode(completion.token_ids)
        assert whole.endswith(("abba", "cc"))
        ends = [whole.find(string) for string in ("abba", "cc") if string in whole]
        assert completion.text == whole[: min(ends)]
        assert len(completion.logprobs) == len(completion.token_ids)


def test_length_limits() -> None:
    engine = make_engine(context_length=12)
    short, cut = generate(engine, ask("a", prompt(5), max_tokens=3), ask("b", prompt(5), max_tokens=50))
    assert (len(short.token_ids), short.finish) == (3, FinishReason.LENGTH)
    assert (len(cut.token_ids), cut.finish) == (7, FinishReason.LENGTH)


def test_a_stop_at_the_limit_is_a_stop() -> None:
    engine = make_engine(Bent(always("#")).decoder)
    stops = frozenset({int(encode("#")[0])})
    assert generate(engine, ask(max_tokens=1, stop_ids=stops))[0].finish is FinishReason.STOP
    assert generate(engine, ask(max_tokens=2, stop_strings=("##",)))[0].finish is FinishReason.STOP


def test_ids_beyond_the_tokenizer_are_never_sampled_or_counted() -> None:
    model = tiny_model(vocab_size=128)
    with torch.no_grad():
        model.lm_head.weight[120] = model.lm_head.weight[:108].abs().max() * 50  # a loud padded row
    engine = make_engine(Decoder(model, vocab_size=108))
    for completion in generate(engine, *asks(20, prompt(5), temperature=3.0)):
        assert completion.token_ids.max() < 108
    scores = score(engine, prompt(5), top_k=108, entropy=True)
    assert scores.top_logprobs is not None
    assert scores.entropy is not None
    np.testing.assert_allclose(np.exp(scores.top_logprobs).sum(-1), 1, atol=1e-5)
    assert np.isfinite(scores.entropy).all()


# --- scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_scores_are_those_of_the_decoder(temperature: float) -> None:
    decoder, ids = tiny_decoder(), prompt(40)
    scores = score(make_engine(decoder), ids, 7, temperature=temperature, entropy=True, top_k=3)
    exact = law(decoder, ids, temperature)[6:-1]
    np.testing.assert_allclose(scores.logprobs, logprobs_of(decoder, ids, 7, temperature), atol=1e-5)
    assert scores.entropy is not None
    assert scores.top_ids is not None
    assert scores.top_logprobs is not None
    np.testing.assert_allclose(scores.entropy, -(exact.exp() * exact).sum(-1).numpy(), atol=1e-5)
    np.testing.assert_allclose(scores.top_logprobs, exact.topk(3).values.numpy(), atol=1e-5)
    np.testing.assert_array_equal(scores.top_ids, exact.topk(3).indices.numpy())


def test_what_was_not_asked_is_none() -> None:
    scores = score(make_engine(), prompt(5))
    assert (scores.entropy, scores.top_ids, scores.top_logprobs) == (None, None, None)


def test_long_texts_are_scored_in_pieces_of_bounded_size() -> None:
    decoder = tiny_decoder()
    sizes: list[int] = []
    real = decoder.finish

    def finish(scores: torch.Tensor) -> torch.Tensor:
        sizes.append(len(scores))
        return real(scores)

    decoder.finish = finish
    engine = make_engine(decoder, context_length=3000, max_step_tokens=700)
    ids = prompt(1500)
    scores = score(engine, ids, 1, top_k=2)
    assert max(sizes) == 256
    assert sum(sizes) == len(scores.logprobs) == 1499
    assert engine.stats.steps == 3
    score(engine, ids, 1)  # all of it is cached, and still no step scores more than its share
    assert engine.stats.steps == 6


# --- randomness ---------------------------------------------------------------------------------


def test_the_same_requests_give_the_same_bits() -> None:
    def run() -> list[bytes]:
        requests = [ask(f"r{i}", prompt(5 + i % 3), max_tokens=5 + 3 * i, seed=7) for i in range(9)]
        completions = generate(make_engine(max_running=4), *requests)
        return [c.token_ids.tobytes() + c.logprobs.tobytes() for c in completions]

    assert run() == run()


def test_id_and_seed_choose_the_draws() -> None:
    engine = make_engine()
    requests = [ask("a"), ask("a"), ask("b"), ask("a", seed=1)]
    first, same, other, reseeded = (c.token_ids.tolist() for c in generate(engine, *requests))
    assert first == same
    assert first != other
    assert first != reseeded


def test_greedy_takes_the_likeliest() -> None:
    decoder = tiny_decoder()
    completion = generate(make_engine(decoder), ask(prompt_ids=prompt(9), temperature=0.0, max_tokens=20))[0]
    ids = np.concatenate([prompt(9), completion.token_ids])
    np.testing.assert_array_equal(completion.token_ids, law(decoder, ids)[8:-1].argmax(-1).numpy())
    assert (completion.logprobs == 0).all()


def test_bfloat16_serves_too() -> None:
    decoder = Decoder(tiny_model().bfloat16(), vocab_size=108)
    engine = make_engine(decoder)
    for completion in generate(engine, *asks(4, prompt(9), max_tokens=30)):
        ids = np.concatenate([prompt(9), completion.token_ids])
        assert np.abs(completion.logprobs - logprobs_of(decoder, ids, 9)).mean() < 0.05


# --- weights ------------------------------------------------------------------------------------


def test_new_weights_replace_everything() -> None:
    engine = make_engine(tiny_decoder())
    old = generate(engine, ask(prompt_ids=prompt(20)))[0]
    state = dict(tiny_model(seed=1).named_parameters())
    assert engine.load_weights(state, 5) == weights_checksum(state)
    before = engine.stats
    new = generate(engine, ask(prompt_ids=prompt(20)))[0]
    assert (engine.stats - before).prefilled == 20
    assert (new.cached_tokens, old.policy_version, new.policy_version) == (0, 0, 5)
    ids = np.concatenate([prompt(20), new.token_ids])
    np.testing.assert_allclose(new.logprobs, logprobs_of(tiny_decoder(seed=1), ids, 20), atol=1e-5)
    assert score(engine, ids).policy_version == 5


def test_weights_are_refused_while_requests_are_in_flight() -> None:
    engine = make_engine()

    async def main() -> None:
        task = asyncio.create_task(engine.generate(ask(max_tokens=100)))
        await asyncio.sleep(0)
        with pytest.raises(WeightSyncError, match="1 requests are in flight at version 0"):
            engine.load_weights(dict(tiny_model().named_parameters()), 1)
        assert (await task).policy_version == 0
        engine.load_weights(dict(tiny_model().named_parameters()), 1)

    asyncio.run(main())


def test_bad_weights_do_not_poison_what_follows() -> None:
    engine = make_engine()
    good = {name: tensor.detach().clone() for name, tensor in tiny_model().named_parameters()}
    expected = generate(engine, *asks(3, prompt(9)))
    engine.load_weights({name: tensor * torch.nan for name, tensor in good.items()}, 1)
    with pytest.raises(EngineError, match="not finite"):
        generate(engine, ask())
    engine.load_weights(good, 2)
    again = generate(engine, *asks(3, prompt(9)))
    assert [c.token_ids.tolist() for c in again] == [c.token_ids.tolist() for c in expected]


def test_capabilities_are_what_it_serves() -> None:
    capabilities = make_engine(context_length=64, cache_tokens=0).capabilities
    assert (capabilities.context_length, capabilities.prefix_cache) == (64, False)
    assert (capabilities.entropy, capabilities.score_temperature, capabilities.max_top_k) == (True, True, 108)


def test_mixed_work_at_once() -> None:
    decoder = tiny_decoder()
    engine = make_engine(decoder, max_step_tokens=16, max_running=5, cache_tokens=64)

    async def main() -> None:
        works: list[Any] = [engine.generate(request) for request in asks(10, prompt(30), max_tokens=20)]
        works += [engine.score(ScoreRequest(id=f"s{i}", token_ids=prompt(25, i), start=3)) for i in range(5)]
        results = await asyncio.gather(*works)
        for completion in results[:10]:
            ids = np.concatenate([prompt(30), completion.token_ids])
            np.testing.assert_allclose(completion.logprobs, logprobs_of(decoder, ids, 30), atol=1e-5)
        for index, scores in enumerate(results[10:]):
            np.testing.assert_allclose(scores.logprobs, logprobs_of(decoder, prompt(25, index), 3), atol=1e-5)

    asyncio.run(main())
