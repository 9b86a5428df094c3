"""From a recipe's `model` section to a policy that can be sampled and trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from turnpoint.errors import ModelError
from turnpoint.models.adapter import Adapter
from turnpoint.models.decoder import Decoder
from turnpoint.models.locate import model_folder
from turnpoint.models.pretrained import first_line, quiet, read_config, read_model, read_tokenizer
from turnpoint.models.template import end_of_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A policy and what its files say about it."""

    decoder: Decoder
    tokenizer: Any  # a transformers tokenizer
    stop_ids: frozenset[int]  # of tokenizer, generation config and chat template together
    context_length: int  # tokens, prompt and completion together
    source: str  # as it was asked for
    folder: Path  # where its files are; what an export takes the tokenizer from
    dtype: str  # "float32" or "bfloat16"
    adapter: Adapter | None  # None: all weights are the model's own, and trained

    @property
    def parameters(self) -> int:
        """How many weights the model has, an adapter left out; tied ones count once."""
        everything = sum(weight.numel() for weight in self.decoder.model.parameters())
        return everything - (self.adapter.parameters if self.adapter else 0)


def load_model(
    path: str | Path,
    *,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    adapt: Callable[[Any], Adapter] | None = None,
) -> LoadedModel:
    """Returns the model that `path` names: a Hugging Face folder or hub name, a GGUF file, the embedded one.

    `device` auto: CUDA where there is one, else CPU. `dtype` auto: bfloat16 on CUDA and on CPUs that multiply
    it in hardware, else float32. `adapt` puts an adapter into the transformers model, in place; without it
    all weights are trained. Code that comes with a model is never run. Raises ModelError in one line
    when there is no such model or device, when files are missing or damaged, and for what turnpoint does not
    train: encoder-decoders, quantised weights, and architectures that `Decoder` refuses.
    """
    place = _device(device)
    kind = _dtype(dtype, place)
    folder = model_folder(str(path))
    config = read_config(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(f"model {folder}: its weights are quantised and cannot be trained; use the original")
    tokenizer = read_tokenizer(folder)
    model = read_model(folder, config=config, dtype=kind).to(place)
    vocab_size = _vocab_size(folder, tokenizer, model)
    adapter = adapt(model) if adapt is not None else None
    with quiet():
        decoder = Decoder(model, vocab_size=vocab_size)
    return LoadedModel(
        decoder=decoder,
        tokenizer=tokenizer,
        stop_ids=_stop_ids(tokenizer, model.generation_config),
        context_length=_context_length(folder, decoder.config),
        source=str(path),
        folder=folder,
        dtype=str(kind).removeprefix("torch."),
        adapter=adapter,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).item()  # the one question that every backend answers
    except (RuntimeError, AssertionError, ImportError) as error:  # torch asserts that it was built with CUDA
        raise ModelError(
            f"device {name}: not usable here: {first_line(error)[:90]}; auto, cpu, cuda, cuda:1 name one"
        ) from error
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cpu":
        can = torch.cpu.get_capabilities()
        fast = bool(can.get("amx_bf16") or can.get("avx512_bf16"))
    else:
        fast = device.type == "cuda"
    return torch.bfloat16 if fast else torch.float32


def _vocab_size(folder: Path, tokenizer: Any, model: Any) -> int:
    """Returns how many of the model's rows the tokenizer knows; ids may have gaps, so the largest counts."""
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    rows = model.get_input_embeddings().weight.shape[0]
    if not 0 < known <= rows:
        raise ModelError(
            f"model {folder}: its tokenizer has ids up to {known - 1} but the model only {rows} rows; "
            f"they do not belong together"
        )
    return known


def _stop_ids(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    configured: int | list[int] | None = generation_config.eos_token_id
    ids: set[int | None] = {tokenizer.eos_token_id}
    ids.update(configured if isinstance(configured, list) else [configured])
    if tokenizer.chat_template:
        ids.add(end_of_turn(tokenizer))
    return frozenset(token for token in ids if token is not None)


def _context_length(folder: Path, config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)  # GPT-2's n_positions answers to this name
    if not isinstance(length, int) or length < 1:
        raise ModelError(f"model {folder}: config.json does not say how long its context is")
    return length
