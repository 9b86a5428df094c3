"""From `engine.draft` to an engine that drafts: heads stay frozen, and forget what old weights computed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.serve import decode
from tests.tiny import CONTEXT, tiny_decoder
from turnpoint.config import EngineDraftConfig
from turnpoint.engine import TorchEngine
from turnpoint.errors import ModelError
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp_folder import save_heads
from turnpoint.models.mtp_fresh import fresh_heads, parallel_heads
from turnpoint.protocols import GenerateRequest
from turnpoint.speculation import open_speculation
from turnpoint.types import token_array


def engine_of(decoder: Decoder, heads: Path, **options: Any) -> TorchEngine:
    draft = EngineDraftConfig(heads=heads, depth=2)
    return TorchEngine(
        decoder,
        decode=decode,
        context_length=CONTEXT,
        speculation=open_speculation(draft, decoder),
        **options,
    )


async def answers(engine: TorchEngine) -> list[list[int]]:
    asks = [
        GenerateRequest(id=str(it), prompt_ids=token_array([9, 10 + it, 11]), max_tokens=12)
        for it in range(3)
    ]
    found = await asyncio.gather(*[engine.generate(it) for it in asks])
    return [it.token_ids.tolist() for it in found]


def test_new_weights_leave_heads_alone_and_clear_what_they_computed(tmp_path: Path) -> None:
    heads = save_heads(fresh_heads(tiny_decoder()), tmp_path / "heads")
    kept, other = {it.name: it.read_bytes() for it in heads.iterdir()}, tiny_decoder(seed=1)
    state = {name: it.detach().clone() for name, it in other.model.named_parameters()}

    async def both() -> tuple[list[list[int]], list[list[int]]]:
        used, fresh = engine_of(tiny_decoder(), heads), engine_of(tiny_decoder(), heads)
        await answers(used)
        for engine in (used, fresh):
            engine.load_weights(state, 1)
        return await answers(used), await answers(fresh)

    after, new = asyncio.run(both())
    assert after == new
    assert kept == {it.name: it.read_bytes() for it in heads.iterdir()}


def test_heads_of_another_model_and_parallel_ones_are_refused(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    foreign = save_heads(fresh_heads(tiny_decoder(seed=1)), tmp_path / "foreign")
    with pytest.raises(ModelError, match="retrained"):
        open_speculation(EngineDraftConfig(heads=foreign), decoder)
    assert open_speculation(EngineDraftConfig(heads=foreign, retrained=True), decoder) is not None
    flat = save_heads(parallel_heads(decoder, depth=2), tmp_path / "flat")
    with pytest.raises(ModelError, match="parallel heads"):
        open_speculation(EngineDraftConfig(heads=flat), decoder)
    assert open_speculation(None, decoder) is None


@pytest.mark.slow
def test_workers_draft_with_heads_of_their_own(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    heads = save_heads(fresh_heads(decoder), tmp_path / "heads")

    async def serve() -> tuple[list[list[int]], int]:
        engine = engine_of(decoder, heads, workers=2)
        try:
            return await answers(engine), engine.stats.rounds
        finally:
            await engine.close()

    found, rounds = asyncio.run(serve())
    assert rounds > 0
    assert found == asyncio.run(answers(engine_of(tiny_decoder(), heads)))
