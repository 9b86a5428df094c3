"""Every refusal names the request and the numbers."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tests.engine.serve import ask, generate, make_engine, score
from turnpoint.engine import TorchEngine
from turnpoint.errors import EngineError
from turnpoint.protocols import ScoreRequest
from turnpoint.types import token_array


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return make_engine(context_length=16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_ids": []}, "no tokens"),
        ({"prompt_ids": range(16)}, "a prompt of 16 tokens leaves no room to generate in a context of 16"),
        ({"prompt_ids": [5, 108]}, "token 108 at position 1 is outside the vocabulary of 108"),
        ({"prompt_ids": [-1]}, "token -1 at position 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 1e-45}, "temperature is 1e-45"),
        ({"top_k": -1}, "top_k is -1 and top_p 1.0; top_k must be 0"),
        ({"top_p": 0.0}, "top_k is 0 and top_p 0.0"),
        ({"top_p": 1.5}, "top_k is 0 and top_p 1.5"),
        ({"top_p": math.nan}, "top_k is 0 and top_p nan"),
        ({"stop_strings": ("a", "")}, "an empty stop string"),
        ({"continued": 4}, "continued is 4; the prompt has 3 tokens"),
        ({"continued": -1}, "continued is -1"),
    ],
)
def test_generate_refuses(engine: TorchEngine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=f"request 'bad': {message}"):
        generate(engine, ask("bad", **options))


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([], {}, "no tokens"),
        (range(17), {}, "17 tokens exceed the context of 16"),
        ([5, 200], {}, "token 200 at position 1"),
        ([5, 6], {"start": 0}, r"start is 0; with 2 tokens it must lie in 1\.\.1"),
        ([5, 6], {"start": 2}, "start is 2"),
        ([5, 6], {"temperature": 0.0}, "temperature is 0.0"),
        ([5, 6], {"temperature": 1e-45}, "temperature is 1e-45"),
        ([5, 6], {"top_k": 109}, r"top_k is 109; it must lie in 0\.\.108"),
        ([5, 6], {"top_k": -1}, "top_k is -1"),
    ],
)
def test_score_refuses(engine: TorchEngine, ids: list[int], options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"start": 1, **options}
    request = ScoreRequest(id="bad", token_ids=token_array(list(ids)), **given)
    with pytest.raises(EngineError, match=f"request 'bad': {message}"):
        asyncio.run(engine.score(request))


def test_limits_are_inclusive(engine: TorchEngine) -> None:
    assert len(generate(engine, ask(prompt_ids=range(15)))[0].token_ids) == 1
    assert len(score(engine, range(16), 15, top_k=108).logprobs) == 1
