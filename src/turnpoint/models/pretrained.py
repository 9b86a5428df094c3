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
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from turnpoint.errors import ModelError

# What transformers and safetensors have been seen to raise for a damaged or foreign folder.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError)


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


def read_config(folder: Path, **where: Any) -> Any:
    """Returns the configuration in `folder`; raises ModelError unless it describes a decoder to train."""
    with _one_line(folder, "its configuration"):
        config: Any = cast(Any, AutoConfig).from_pretrained(folder, local_files_only=True, **where)
    if config.is_encoder_decoder:
        raise ModelError(
            f"model {folder}: {config.model_type} is an encoder-decoder; turnpoint trains decoder-only models"
        )
    return config


def read_tokenizer(folder: Path, **where: Any) -> Any:
    """Returns the tokenizer in `folder`; raises ModelError when there is none that can be read."""
    with _one_line(folder, "its tokenizer"):
        return cast(Any, AutoTokenizer).from_pretrained(folder, local_files_only=True, **where)


def read_model(folder: Path, *, config: Any, dtype: torch.dtype, **where: Any) -> Any:
    """Returns the causal language model in `folder` on the CPU, in `dtype`.

    Raises ModelError when it cannot be read, or when a weight is missing or has another shape.
    """
    with _one_line(folder, "its weights"):
        model, info = cast(Any, AutoModelForCausalLM).from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            **where,
        )
    _check_complete(folder, info)
    return model


def _check_complete(folder: Path, info: Mapping[str, Any]) -> None:
    missing = sorted(str(key) for key in info["missing_keys"])
    if missing:
        raise ModelError(f"model {folder}: {len(missing)} weights are missing, for example {missing[0]}")
    misshapen = sorted(str(key[0]) for key in info["mismatched_keys"])
    if misshapen:
        raise ModelError(
            f"model {folder}: {len(misshapen)} weights do not have the shape that config.json says, "
            f"for example {misshapen[0]}"
        )


@contextmanager
def _one_line(folder: Path, what: str) -> Generator[None]:
    try:
        with quiet():
            yield
    except _UNREADABLE as error:
        raise ModelError(f"model {folder}: {what} cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
