"""A completion that goes on from one of its own tokens is the completion that never stopped."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.serve import ask, decode, generate, make_engine, prompt
from tests.tiny import ARCHITECTURES, tiny_decoder
from turnpoint.types import FinishReason, token_array

PROMPT = prompt(5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_from_every_token_the_likeliest_completion_comes_back(architecture: str) -> None:
    """Ids, text, and where a stop string cuts it, also one that lies across the point."""
    engine = make_engine(tiny_decoder(architecture))
    (free,) = generate(engine, ask("free", PROMPT, max_tokens=16, temperature=0))
    text = decode(free.token_ids)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    options = {"temperature": 0, "stop_strings": (stop,)}
    (whole,) = generate(engine, ask("whole", PROMPT, max_tokens=16, **options))
    assert whole.finish is FinishReason.STOP
    for kept in range(1, len(whole.token_ids)):
        request = ask(
            f"from {kept}",
            np.concatenate([PROMPT, whole.token_ids[:kept]]),
            max_tokens=16 - kept,
            continued=kept,
            **options,
        )
        (again,) = generate(engine, request)
        assert np.array_equal(again.token_ids, whole.token_ids[kept:])
        assert (again.text, again.finish) == (whole.text, FinishReason.STOP)
        assert again.cached_tokens >= len(PROMPT)  # nothing of the prefix was computed again


def test_what_was_not_continued_is_not_searched_for_stops() -> None:
    engine = make_engine()
    (free,) = generate(engine, ask("free", PROMPT, max_tokens=8, temperature=0))
    first = decode(free.token_ids[:2])
    ids = np.concatenate([PROMPT, free.token_ids[:3]])
    (result,) = generate(engine, ask("fork", ids, max_tokens=5, temperature=0, stop_strings=(first,)))
    assert result.text == decode(token_array(free.token_ids[3 : 3 + len(result.token_ids)]))
