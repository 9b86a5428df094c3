"""A filtered law is the likeliest tokens' share of the whole one; what an engine draws has that law."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import TopKLogitsWarper, TopPLogitsWarper

from tests.engine.guesses import Guesses
from tests.engine.serve import ask, asks, decode, generate, law, make_engine, prompt
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.engine import TorchEngine
from turnpoint.engine.depth import FixedDepth
from turnpoint.engine.filters import Filters
from turnpoint.engine.speculation import Speculation


def filtered(probs: Tensor, top_k: int, top_p: float) -> Tensor:
    count = len(probs)
    return Filters(top_k=np.full(count, top_k), top_p=np.full(count, top_p))(probs)


def test_by_hand() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    torch.testing.assert_close(filtered(probs, 3, 1.0), torch.tensor([[0.0, 4, 2, 3]]) / 9)
    torch.testing.assert_close(filtered(probs, 0, 0.39), torch.tensor([[0.0, 1, 0, 0]]))
    torch.testing.assert_close(filtered(probs, 0, 0.41), torch.tensor([[0.0, 4, 0, 3]]) / 7)
    # of the three likeliest, 4/9 and 3/9 have 0.75 together, and 0.7 of all they have
    torch.testing.assert_close(filtered(probs, 3, 0.75), torch.tensor([[0.0, 4, 0, 3]]) / 7)


@pytest.mark.parametrize("vocab", [7, 600, 3000])  # more and fewer than are looked at without sorting all
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 0.3), (0, 0.95), (5, 1.0), (550, 1.0), (40, 0.5), (0, 0.9999)]
)
def test_what_stays_is_what_transformers_keeps(vocab: int, top_k: int, top_p: float) -> None:
    logits = 2 * torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab))
    ids: Any = None
    kept: Any = logits
    if top_k:
        kept = TopKLogitsWarper(min(top_k, vocab))(ids, kept)
    if top_p < 1:
        kept = TopPLogitsWarper(top_p)(ids, kept)
    expected = torch.softmax(kept, -1)
    torch.testing.assert_close(
        filtered(torch.softmax(logits, -1), top_k, top_p), expected, atol=1e-6, rtol=1e-4
    )


def test_rows_have_filters_of_their_own_and_none_leaves_the_very_law() -> None:
    probs = torch.softmax(torch.randn(3, 20, generator=torch.Generator().manual_seed(0)), -1)
    both = Filters(top_k=np.array([0, 4, 0]), top_p=np.array([1.0, 1.0, 0.5]))
    found = both(probs)
    assert torch.equal(found[0], probs[0])
    torch.testing.assert_close(found[1:2], filtered(probs[1:2], 4, 1.0))
    torch.testing.assert_close(found[2:], filtered(probs[2:], 0, 0.5))
    assert both.rows(np.array([0, 0]))(probs[:2]) is not found
    nothing = both.rows(np.array([0, 0, 0]))
    assert nothing(probs) is probs


def test_no_filter_cuts_the_likeliest() -> None:
    probs = torch.tensor([[1e-6, 1 - 1e-6]])
    assert filtered(probs, 0, 1e-9).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("mode", [None, "token", "block", "target_only"])
def test_an_engine_draws_from_the_filtered_law_and_says_so(mode: str | None) -> None:
    """Second tokens, which drafts propose; filters of rows do not mix."""
    decoder = tiny_decoder()
    speculation = mode and Speculation(drafter=Guesses(tiny_decoder(seed=4)), depth=FixedDepth(2), mode=mode)
    engine = TorchEngine(decoder, decode=decode, context_length=CONTEXT, speculation=speculation or None)
    cut = asks(300, prompt(6), max_tokens=3, top_k=3, top_p=0.9, temperature=1.2)
    whole = [ask("whole", prompt(6), max_tokens=3)]
    found = generate(engine, *cut, *whole)
    seen: dict[int, Counter[int]] = {}
    for completion in found[:-1]:
        ids = np.concatenate([prompt(6), completion.token_ids])
        exact = filtered(torch.softmax(law(decoder, ids)[5:8] / 1.2, -1), 3, 0.9)
        places = torch.from_numpy(completion.token_ids.astype(np.int64)).unsqueeze(1)
        np.testing.assert_allclose(completion.logprobs, exact.gather(1, places)[:, 0].log(), atol=2e-4)
        first, second = completion.token_ids[:2].tolist()
        seen.setdefault(first, Counter())[second] += 1
    first, counts = max(seen.items(), key=lambda it: it[1].total())
    exact = filtered(torch.softmax(law(decoder, [*prompt(6).tolist(), first])[-1:] / 1.2, -1), 3, 0.9)[0]
    for token, probability in enumerate(map(float, exact)):
        spread = 4 * (max(probability * (1 - probability), 1e-9) / counts.total()) ** 0.5
        assert counts[token] / counts.total() == pytest.approx(probability, abs=spread)


def test_the_likeliest_token_is_the_same_under_any_filter() -> None:
    engine = make_engine()
    plain, cut = generate(
        engine,
        ask("plain", temperature=0.0, max_tokens=6),
        ask("cut", temperature=0.0, max_tokens=6, top_k=2, top_p=0.5),
    )
    np.testing.assert_array_equal(plain.token_ids, cut.token_ids)
