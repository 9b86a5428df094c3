"""Drafts are drawn as warm as overlaps the policy most, by what earlier rounds showed, and stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.guesses import Guesses
from tests.engine.serve import ask, decode, generate, prompt
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.engine import TorchEngine, speculation
from turnpoint.engine.depth import FixedDepth
from turnpoint.engine.filters import Filters
from turnpoint.engine.sampler import draw
from turnpoint.engine.speculation import Speculation
from turnpoint.engine.tempering import FACTORS, Tempering
from turnpoint.engine.verification import verify_chains


def whole(count: int) -> Filters:
    return Filters(top_k=np.zeros(count, dtype=np.int64), top_p=np.ones(count))


def laws(temperatures: list[float], *, sharper: float) -> tuple[Tensor, Tensor]:
    """Returns target laws [n, 2, V] and logits of drafts that are `sharper` times as sharp at depth 2."""
    logits = torch.randn(len(temperatures), 2, 50, generator=torch.Generator().manual_seed(0))
    warm = torch.tensor(temperatures).clamp(min=1e-6)[:, None, None]
    return torch.softmax(logits / warm, -1), logits * torch.tensor([1.0, sharper])[:, None]


@pytest.mark.parametrize("factor", FACTORS)
def test_what_makes_up_for_drafts_that_are_too_sharp_or_too_flat_is_found(factor: float) -> None:
    tempering = Tempering(3)
    temperatures = [1.0, 0.6, 1.3, 1.0] * 20
    target, logits = laws(temperatures, sharper=factor)
    assert tempering.factors.tolist() == [1, 1, 1]
    everywhere = torch.ones(len(temperatures), 2, dtype=torch.bool)
    tempering.observe(
        target=target,
        logits=logits,
        temperatures=np.array(temperatures),
        reached=everywhere,
        filters=whole(len(temperatures)),
    )
    assert tempering.factors.tolist() == [1, factor, 1], "nothing was seen of depth 3"


def test_what_was_not_reached_and_greedy_rows_show_nothing() -> None:
    tempering = Tempering(2)
    target, logits = laws([0.0] * 40 + [1.0] * 40, sharper=1.4)
    reached = torch.zeros(80, 2, dtype=torch.bool)
    reached[:40] = True  # of greedy rows
    reached[40:, 0] = True
    tempering.observe(
        target=target,
        logits=logits,
        temperatures=np.array([0.0] * 40 + [1.0] * 40),
        reached=reached,
        filters=whole(80),
    )
    assert tempering.factors.tolist() == [1, 1]


def test_the_likeliest_token_has_no_temperature() -> None:
    with pytest.raises(ValueError, match="target_only"):
        Speculation(drafter=Guesses(tiny_decoder()), depth=FixedDepth(1), mode="target_only", tempered=True)


def test_some_rounds_are_looked_at() -> None:
    tempering = Tempering(1)
    assert [tempering.next_round() for _ in range(17)].count(True) == 3


def test_verification_is_given_the_laws_that_drafts_were_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides is the law behind each draw: softmax of the draft's logits at its temperature."""
    monkeypatch.setattr(Tempering, "factors", property(lambda _: np.array([0.5, 3.0])))
    drawn: list[Tensor] = []
    given: list[Tensor] = []

    def drawing(*, probs: Tensor, uniforms: Tensor) -> Tensor:
        drawn.append(probs)
        return draw(probs=probs, uniforms=uniforms)

    def verifying(**what: Any) -> tuple[Tensor, Tensor]:
        given.extend(what["draft_probs"].unbind(1))
        return verify_chains(**what)

    monkeypatch.setattr(speculation, "draw", drawing)
    monkeypatch.setattr(speculation, "verify_chains", verifying)
    decoder = tiny_decoder(seed=3)
    engine = TorchEngine(
        tiny_decoder(),
        decode=decode,
        context_length=CONTEXT,
        speculation=Speculation(drafter=Guesses(decoder), depth=FixedDepth(2), tempered=True),
    )
    generate(engine, ask("warm", prompt(9), temperature=1.3, max_tokens=4))
    assert len(given) == len(drawn) >= 2
    for drafted, verified in zip(drawn, given, strict=True):
        torch.testing.assert_close(drafted, verified)
    entropies = [float(-(it[0] * it[0].clamp(min=1e-12).log()).sum()) for it in drawn[:2]]
    assert entropies[0] < entropies[1], "a factor of its own for each depth"
