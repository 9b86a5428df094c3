"""From what a recipe calls a model to a folder with its files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import huggingface_hub
from huggingface_hub import constants

from turnpoint.errors import ModelError
from turnpoint.models.embedded import EMBEDDED, embedded_folder
from turnpoint.models.gguf import convert_gguf
from turnpoint.models.pretrained import first_line

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Configuration, tokenizer and safetensors weights; the same weights in other forms stay where they are.
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model", "*.tiktoken")
_UNWANTED = ("*/*", "consolidated*")


def model_folder(path: str) -> Path:
    """Returns the folder of a model given as embedded name, folder, GGUF file or hub name.

    Raises ModelError in one line that says what was tried.
    """
    if path == EMBEDDED:
        return embedded_folder()
    local = Path(path).expanduser()
    if local.is_dir():
        _check_folder(local)
        return local
    if local.suffix == ".gguf":
        return convert_gguf(local)
    if local.is_file():
        raise ModelError(f"model {path}: a file; give the folder that it lies in, or a .gguf file")
    if not _HUB_NAME.fullmatch(path):
        raise ModelError(f"model {path}: there is no such folder")
    return _hub_folder(path)


def _check_folder(folder: Path) -> None:
    if (folder / "config.json").is_file():
        return
    files = sorted(folder.glob("*.gguf"))
    hint = f"; it holds {files[0].name}: give that file" if files else ""
    if (folder / "adapter_config.json").is_file():
        hint = "; it holds an adapter: give its base here, and this folder as model.adapter of kind saved"
    raise ModelError(f"model {folder}: not a model folder, it has no config.json{hint}")


def _hub_folder(name: str) -> Path:
    wanted: dict[str, Any] = {"allow_patterns": list(_WANTED), "ignore_patterns": list(_UNWANTED)}
    try:
        return Path(cast(Any, huggingface_hub).snapshot_download(name, **wanted))
    except (OSError, ValueError) as error:
        tried = "HF_HUB_OFFLINE is set and the hub's cache lacks it"
        if not constants.HF_HUB_OFFLINE:
            tried = f"the hub did not give it: {first_line(error)}"
        raise ModelError(
            f"model {name}: there is no such folder, and {tried}; give a folder, a hub name or {EMBEDDED}"
        ) from error
