"""Engines around tiny models, and requests to them, in one line each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.tiny import CONTEXT, tiny_decoder, tiny_tokenizer
from turnpoint.engine import TorchEngine
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Completion, GenerateRequest, ScoreRequest, Scores
from turnpoint.types import TokenIds, token_array

_TOKENIZER = tiny_tokenizer()


def decode(ids: TokenIds) -> str:
    return _TOKENIZER.decode(ids.tolist())


def encode(text: str) -> TokenIds:
    return token_array(_TOKENIZER.encode(text, add_special_tokens=False))


def make_engine(
    decoder: Decoder | None = None,
    *,
    decode: Callable[[TokenIds], str] = decode,
    context_length: int = CONTEXT,
    **limits: Any,
) -> TorchEngine:
    return TorchEngine(
        tiny_decoder() if decoder is None else decoder,
        decode=decode,
        context_length=context_length,
        **limits,
    )


def prompt(length: int, seed: int = 0) -> TokenIds:
    return token_array(np.random.default_rng(seed).integers(8, 100, length))


def ask(id: str = "r", prompt_ids: npt.ArrayLike = (20, 21, 22), **options: Any) -> GenerateRequest:
    given: dict[str, Any] = {"max_tokens": 8, **options}
    return GenerateRequest(id=id, prompt_ids=token_array(np.asarray(prompt_ids)), **given)


def asks(count: int, prompt_ids: npt.ArrayLike, **options: Any) -> list[GenerateRequest]:
    return [ask(f"r{index}", prompt_ids, **options) for index in range(count)]


def generate(engine: TorchEngine, *requests: GenerateRequest) -> list[Completion]:
    """Serves all requests at once, in a loop of their own."""

    async def main() -> list[Completion]:
        return await asyncio.gather(*[engine.generate(request) for request in requests])

    return asyncio.run(main())


def score(engine: TorchEngine, ids: npt.ArrayLike, start: int = 1, **options: Any) -> Scores:
    return asyncio.run(
        engine.score(ScoreRequest(id="s", token_ids=token_array(np.asarray(ids)), start=start, **options))
    )


@torch.no_grad()
def law(decoder: Decoder, ids: Sequence[int] | TokenIds, temperature: float = 1.0) -> torch.Tensor:
    """Returns log p(. | ids[:i + 1]) for every i, [n, V], by the decoder alone: what the trainer sees."""
    row = torch.as_tensor(np.asarray(ids, dtype=np.int64))
    logits = decoder.logits(decoder.hidden(row, torch.arange(len(row)), CausalLayout()))
    return torch.log_softmax(logits / temperature, dim=-1)


def logprobs_of(decoder: Decoder, ids: TokenIds, start: int, temperature: float = 1.0) -> npt.NDArray[Any]:
    """Returns log p(ids[i] | ids[:i]) for i >= start by the decoder alone."""
    targets = torch.as_tensor(ids[start:].astype(np.int64)).unsqueeze(1)
    return law(decoder, ids, temperature)[start - 1 : -1].gather(1, targets).squeeze(1).numpy()
