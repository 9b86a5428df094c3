"""The one place that reads model files through transformers: quietly, completely, or with one line.

transformers fills weights that a checkpoint lacks with random numbers and says so in a log; here that is
an error.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from turnpoint.errors import ModelError


@contextmanager
def quiet() -> Generator[None]:
    """Silences transformers' progress bars and warnings; what matters in them is raised here instead."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def read_config(source: Path) -> Any:
    """Returns the configuration in `source`, a folder or a GGUF file.

    Raises ModelError when it cannot be read or describes an encoder-decoder.
    """
    with _one_line(source, "its configuration"):
        config: Any = cast(Any, AutoConfig).from_pretrained(**_place(source))
    if config.is_encoder_decoder:
        raise ModelError(
            f"model {source}: {config.model_type} is an encoder-decoder; turnpoint trains decoder-only models"
        )
    return config


def read_tokenizer(source: Path) -> Any:
    """Returns the tokenizer in `source`; raises ModelError when there is none that can be read."""
    with _one_line(source, "its tokenizer"):
        return cast(Any, AutoTokenizer).from_pretrained(**_place(source))


def read_model(source: Path, *, config: Any, dtype: torch.dtype) -> Any:
    """Returns the causal language model in `source` on the CPU, in `dtype`.

    Raises ModelError when it cannot be read, or when a weight is missing, has another shape or holds NaN.
    """
    with _one_line(source, "its weights"):
        model, info = cast(Any, AutoModelForCausalLM).from_pretrained(
            **_place(source),
            config=config,
            dtype=dtype,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
        )
    _check_complete(source, info)
    _check_finite(source, model)
    return model


def _place(source: Path) -> dict[str, Any]:
    place: dict[str, Any] = {"pretrained_model_name_or_path": source, "local_files_only": True}
    if source.is_file():
        place |= {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    return place


def _check_complete(source: Path, info: Mapping[str, Any]) -> None:
    missing = sorted(str(key) for key in info["missing_keys"])
    if missing:
        raise ModelError(f"model {source}: {len(missing)} weights are missing, for example {missing[0]}")
    misshapen = sorted(str(key[0]) for key in info["mismatched_keys"])
    if misshapen:
        raise ModelError(
            f"model {source}: {len(misshapen)} weights do not have the shape that config.json says, "
            f"for example {misshapen[0]}"
        )


def _check_finite(source: Path, model: Any) -> None:
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ModelError(f"model {source}: {name} holds NaN or infinity; it was damaged in training")


@contextmanager
def _one_line(source: Path, what: str) -> Generator[None]:
    try:
        with quiet():
            yield
    except Exception as error:  # of many kinds: transformers' readers check little of what they are given
        raise ModelError(f"model {source}: {what} cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Returns the start of an error's message: its first line, and the next where that ends in a colon.

    At most 300 characters; the error's type where there is no message.
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    end = next((number for number, line in enumerate(lines, start=1) if not line.endswith(":")), len(lines))
    text = " ".join(lines[:end])
    return f"{text[:297]}..." if len(text) > 300 else text or type(error).__name__
