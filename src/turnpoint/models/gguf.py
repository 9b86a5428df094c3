"""GGUF files become Hugging Face folders, once.

A quantised file is unpacked to float32, which holds every value it can express exactly; bfloat16 on disk
would be half the size and round twice what is trained in float32. Reading a GGUF takes transformers most
of a minute even for a small model, reading the folder a second.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM

from turnpoint.errors import ModelError
from turnpoint.models.folders import cache_folder, staged
from turnpoint.models.pretrained import first_line, quiet, read_config, read_model, read_tokenizer

_NEEDS = ("gguf", "accelerate")  # what transformers reads GGUF with


def convert_gguf(file: str | Path) -> Path:
    """Returns a Hugging Face folder with the weights, tokenizer and chat template of a GGUF `file`.

    The first call converts into `cache_folder()`, later ones find it there by the file's content; two
    processes may convert at the same time. Raises ModelError when the file is missing, is no GGUF, or holds
    an architecture that transformers does not read; and when the packages that read it are not installed.
    """
    file = Path(file).expanduser()
    folder = converted_folder(file.stem, _digest(file))
    if folder.is_dir():
        return folder
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(
            f"model {file}: reading GGUF needs {' and '.join(missing)}: pip install 'turnpoint[quickstart]'"
        )
    print(f"turnpoint: converting {file.name} once, into {folder}", file=sys.stderr, flush=True)
    try:
        with staged(folder, replace=False) as new:
            _convert(file, new)
    except OSError as error:
        raise ModelError(
            f"model {file}: cannot be converted into {folder}: {first_line(error)}; "
            f"TURNPOINT_CACHE names another place"
        ) from error
    return folder


def converted_folder(stem: str, digest: str) -> Path:
    """Returns where the conversion of a file with this SHA-256 is, or will be."""
    return cache_folder() / f"{stem.lower()}-{digest[:16]}"


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise ModelError(f"model {file}: not a GGUF file")
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"model {file}: {error.strerror}") from error


def _convert(file: Path, folder: Path) -> None:
    tokenizer = read_tokenizer(file)
    model = read_model(file, config=read_config(file), dtype=torch.float32)
    with quiet():
        _plain_copy(model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    _drop_foreign_tokens(folder / "tokenizer.json", rows=model.get_input_embeddings().weight.shape[0])


def _drop_foreign_tokens(file: Path, *, rows: int) -> None:
    """Removes added tokens that the model has no row for: transformers starts from GPT-2's special token."""
    tree = json.loads(file.read_text(encoding="utf-8"))
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["id"] < rows]
    file.write_text(json.dumps(tree, ensure_ascii=False), encoding="utf-8")


def _plain_copy(model: Any) -> Any:
    """Returns the model without its quantiser: transformers refuses to save what came from a GGUF file."""
    kind = cast(Any, type(model.config))
    config = kind.from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    with torch.device("meta"):  # no second set of weights
        plain = cast(Any, AutoModelForCausalLM).from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict(), assign=True)
    return plain
