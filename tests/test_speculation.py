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
from turnpoint.models.mtp_folder import DraftHeads, save_heads
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


def saved(folder: Path, decoder: Decoder, heads: DraftHeads | None = None, *, depth: int = 3) -> Path:
    """Returns the folder of heads that count as trained to `depth`."""
    heads = heads or fresh_heads(decoder)
    heads.trained_depth = depth
    return save_heads(heads, folder)


async def answers(engine: TorchEngine) -> list[list[int]]:
    asks = [
        GenerateRequest(id=str(it), prompt_ids=token_array([9, 10 + it, 11]), max_tokens=12)
        for it in range(3)
    ]
    found = await asyncio.gather(*[engine.generate(it) for it in asks])
    return [it.token_ids.tolist() for it in found]


def test_new_weights_leave_heads_alone_and_clear_what_they_computed(tmp_path: Path) -> None:
    heads = saved(tmp_path / "heads", tiny_decoder())
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


def test_heads_of_another_model_are_refused(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    foreign = saved(tmp_path / "foreign", tiny_decoder(seed=1))
    with pytest.raises(ModelError, match="retrained"):
        open_speculation(EngineDraftConfig(heads=foreign), decoder)
    assert open_speculation(EngineDraftConfig(heads=foreign, retrained=True), decoder) is not None
    with pytest.raises(ModelError, match="another backbone: architecture"):
        open_speculation(EngineDraftConfig(heads=foreign, retrained=True), tiny_decoder("qwen3"))
    assert open_speculation(None, decoder) is None


@pytest.mark.parametrize("kind", ["chain", "parallel"])
def test_heads_draft_as_deep_as_they_were_trained_and_no_deeper(kind: str, tmp_path: Path) -> None:
    decoder = tiny_decoder()
    heads = saved(
        tmp_path / "heads",
        decoder,
        parallel_heads(decoder, depth=2) if kind == "parallel" else fresh_heads(decoder, layers=2),
        depth=2,
    )
    engine = engine_of(decoder, heads)  # to 2
    assert asyncio.run(answers(engine))
    assert engine.stats.drafted > engine.stats.rounds > 0
    with pytest.raises(
        ModelError, match=r"depth = 3: .* trained to 2; take engine\.draft\.depth=2"
    ) as caught:
        open_speculation(EngineDraftConfig(heads=heads, depth=3), decoder)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_workers_draft_with_heads_of_their_own(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    heads = saved(tmp_path / "heads", decoder)

    async def serve() -> tuple[list[list[int]], int]:
        engine = engine_of(decoder, heads, workers=2)
        try:
            return await answers(engine), engine.stats.rounds
        finally:
            await engine.close()

    found, rounds = asyncio.run(serve())
    assert rounds > 0
    assert found == asyncio.run(answers(engine_of(tiny_decoder(), heads)))
