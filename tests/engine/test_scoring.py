"""Scores compute only what is new: counted by what went through the network, was read, and got a law."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from tests.engine.serve import ask, generate, logprobs_of, make_engine, prompt, score
from tests.tiny import tiny_decoder
from turnpoint.engine import EngineStats, TorchEngine
from turnpoint.protocols import ScoreRequest, Scores
from turnpoint.types import TokenIds


def spent(engine: TorchEngine, before: EngineStats) -> tuple[int, int, int]:
    """Returns the tokens prefilled, read from the cache and scored since."""
    done = engine.stats - before
    return done.prefilled, done.cached, done.scored


def scored_together(engine: TorchEngine, *paths: TokenIds, start: int) -> list[Scores]:
    async def main() -> list[Scores]:
        requests = [ScoreRequest(id=f"s{i}", token_ids=ids, start=start) for i, ids in enumerate(paths)]
        return await asyncio.gather(*[engine.score(request) for request in requests])

    return asyncio.run(main())


def test_a_rollout_is_scored_from_the_states_it_was_decoded_with() -> None:
    engine = make_engine()
    root = generate(engine, ask(prompt_ids=prompt(30), max_tokens=20))[0]
    path = np.concatenate([prompt(30), root.token_ids])
    before = engine.stats
    scores = score(engine, path, 30)
    assert spent(engine, before) == (0, 49, 20)  # the last token is never an input
    assert scores.cached_tokens == 49
    np.testing.assert_allclose(scores.logprobs, root.logprobs, atol=1e-5)


@pytest.mark.parametrize("shared", [1, 10, 29])
def test_a_rollout_under_another_prompt_computes_what_follows_where_they_part(shared: int) -> None:
    engine = make_engine()
    root = generate(engine, ask(prompt_ids=prompt(30), max_tokens=20))[0]
    told = np.concatenate([prompt(30)[:shared], prompt(25, seed=1)])
    assert told[shared] != prompt(30)[shared]
    before = engine.stats
    scores = score(engine, np.concatenate([told, root.token_ids]), len(told))
    assert spent(engine, before) == (len(told) + 19 - shared, shared, 20)
    assert scores.cached_tokens == shared


@pytest.mark.parametrize("max_step_tokens", [16, 2048])
def test_two_records_of_one_root_share_what_comes_before_them_once(max_step_tokens: int) -> None:
    engine, decoder = make_engine(max_step_tokens=max_step_tokens), tiny_decoder()
    records = [np.concatenate([prompt(40), prompt(6, seed), prompt(20, 9)]) for seed in (1, 2)]
    first, second = scored_together(engine, *records, start=46)
    assert spent(engine, EngineStats()) == (65 + 65 - 40, 40, 40)
    assert (first.cached_tokens, second.cached_tokens) == (0, 40)
    for scores, ids in zip((first, second), records, strict=True):
        np.testing.assert_allclose(scores.logprobs, logprobs_of(decoder, ids, 46), atol=1e-5)


def test_a_law_is_computed_only_where_it_is_asked() -> None:
    decoder = tiny_decoder()
    rows: list[int] = []
    real = decoder.finish

    def finish(scores: torch.Tensor) -> torch.Tensor:
        rows.append(len(scores))
        return real(scores)

    decoder.finish = finish
    engine = make_engine(decoder)
    scores = score(engine, prompt(200), 190, entropy=True)
    assert sum(rows) == len(scores.logprobs) == 10
    assert spent(engine, EngineStats()) == (199, 0, 10)


def test_what_was_scored_is_scored_again_without_the_network() -> None:
    engine = make_engine()
    first = score(engine, prompt(60), 20)
    before = engine.stats
    again = score(engine, prompt(60), 20)
    assert spent(engine, before) == (0, 59, 40)
    assert again.logprobs.tobytes() == first.logprobs.tobytes()
    before = engine.stats
    deeper = score(engine, prompt(60), 50)
    assert spent(engine, before) == (0, 59, 10)
    np.testing.assert_allclose(deeper.logprobs, first.logprobs[30:], atol=1e-6)
