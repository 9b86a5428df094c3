"""Heads out of checkpoints of all families draft in an engine around their own kind of backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.engine.serve import ask, asks, decode, generate, logprobs_of, prompt
from tests.models.mtp_models import ROWS, family_model, random_heads
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.engine import TorchEngine
from turnpoint.engine.depth import FixedDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.parallel import ParallelDrafter
from turnpoint.engine.speculation import Speculation
from turnpoint.engine.verification import MODES
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_checkpoints import checkpoint_state
from turnpoint.models.mtp_folder import load_checkpoint_heads
from turnpoint.models.mtp_fresh import parallel_heads
from turnpoint.models.mtp_host import host_of
from turnpoint.models.mtp_layout import mtp_layout
from turnpoint.protocols import Drafter

FULL = {"layer_types": ["full_attention", "full_attention"]}  # what an engine runs of Qwen3-Next and 3.5
FAMILIES: list[tuple[str, int, dict[str, Any]]] = [
    ("deepseek_v3", 1, {}),
    ("glm4_moe", 2, {}),
    ("qwen3_next", 1, FULL),
    ("mimo", 3, {}),
]


def engine_of(decoder: Decoder, drafter: Drafter | None, mode: str = "token") -> TorchEngine:
    return TorchEngine(
        decoder,
        decode=decode,
        context_length=CONTEXT,
        speculation=None if drafter is None else Speculation(drafter=drafter, depth=FixedDepth(4), mode=mode),
    )


def check(decoder: Decoder, drafter: Drafter) -> None:
    """The likeliest texts are those of plain decoding in every mode; log-probabilities are the policy's."""
    short = prompt(7) % ROWS
    greedy = asks(2, short, max_tokens=14, temperature=0.0)
    plain = generate(engine_of(decoder, None), *greedy)
    for mode in MODES:
        engine = engine_of(decoder, drafter, mode)
        for left, right in zip(generate(engine, *greedy), plain, strict=True):
            np.testing.assert_array_equal(left.token_ids, right.token_ids)
        drafter.clear()
    engine = engine_of(decoder, drafter)
    warm = ask("warm", short, max_tokens=20, temperature=2.0)
    (found,) = generate(engine, warm)
    exact = logprobs_of(decoder, np.concatenate([short, found.token_ids]), len(short), 2.0)
    np.testing.assert_allclose(found.logprobs, exact, atol=5e-4)
    assert engine.stats.drafted > 0


@pytest.mark.parametrize(("family", "layers", "settings"), FAMILIES)
def test_heads_of_a_checkpoint_in_its_true_names(
    family: str, layers: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    decoder = Decoder(family_model(family, **settings), vocab_size=ROWS)
    made = random_heads(host_of(decoder), mtp_layout(family, layers=layers))
    safetensors.torch.save_file(checkpoint_state(made), tmp_path / "model.safetensors")
    heads = load_checkpoint_heads(decoder, family, folder=tmp_path)
    assert isinstance(heads, MtpHeads)
    assert heads.layout.layers == layers
    check(decoder, MtpDrafter(heads, deepest=4))


def test_heads_side_by_side() -> None:
    decoder = tiny_decoder()
    heads = parallel_heads(decoder, depth=4)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    check(decoder, ParallelDrafter(heads))


def test_heads_side_by_side_draft_from_the_newest_state() -> None:
    """Heads that pass the state on draft at every depth what the policy drew from there."""
    decoder, seen = tiny_decoder(), list[torch.Tensor]()

    def draw(logits: torch.Tensor) -> torch.Tensor:
        seen.append(logits)
        return logits.argmax(-1)

    states = [torch.randn(3, 32), torch.randn(1, 32)]
    ParallelDrafter(parallel_heads(decoder, depth=2)).propose(
        rows=[0, 1],
        starts=[0, 5],
        hidden=states,
        token_ids=[np.zeros(3, np.int32), np.zeros(1, np.int32)],
        depths=[1, 2],
        head=decoder.logits,
        draw=draw,
    )
    torch.testing.assert_close(seen[0], decoder.logits(torch.stack([states[0][-1], states[1][-1]])))
    torch.testing.assert_close(seen[1], decoder.logits(states[1]))
