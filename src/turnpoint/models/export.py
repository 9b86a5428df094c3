"""Writing a policy as a normal Hugging Face folder."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from turnpoint.errors import RunFolderError
from turnpoint.models.decoder import Decoder
from turnpoint.models.folders import staged
from turnpoint.models.pretrained import first_line, quiet

MARK = "turnpoint_export.json"  # tells a folder that may be replaced from one that may not

_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates",
)


def export_model(decoder: Decoder, *, tokenizer: str | Path | Any, folder: str | Path) -> Path:
    """Writes weights, configuration and tokenizer to `folder`, whole or not at all; returns it.

    `tokenizer` is the folder that the policy was loaded from, whose tokenizer files and generation
    configuration are copied byte for byte, or a transformers tokenizer to save. Tied weights stay tied; the
    weights keep their dtype. An earlier export is replaced; raises RunFolderError for any other folder
    that is not empty, and when the disk refuses.
    """
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and _may_replace(folder)):
        raise RunFolderError(f"export {folder}: exists and is no export of turnpoint; choose another folder")
    try:
        with staged(folder, replace=True) as new:
            with quiet():
                _savable(decoder.model).save_pretrained(new)
            _write_tokenizer(tokenizer, new)
            for file in new.iterdir():
                file.chmod(0o644)  # safetensors writes for its owner alone
            (new / MARK).write_text(json.dumps({"format": 1}) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"export {folder}: cannot be written: {first_line(error)}") from error
    return folder


def _may_replace(folder: Path) -> bool:
    return (folder / MARK).is_file() or not any(folder.iterdir())


def _savable(model: Any) -> Any:
    """Returns the model with a generation configuration that says where to stop and nothing else.

    transformers loads a configuration that mixes greedy with sampling options, as some hub models have it,
    but refuses to save one.
    """
    view = copy.copy(model)
    given = model.generation_config
    view.generation_config = GenerationConfig(
        bos_token_id=given.bos_token_id, eos_token_id=given.eos_token_id, pad_token_id=given.pad_token_id
    )
    return view


def _write_tokenizer(tokenizer: Any, folder: Path) -> None:
    if not isinstance(tokenizer, str | Path):
        with quiet():
            tokenizer.save_pretrained(folder)
        return
    for pattern in (*_TOKENIZER_FILES, "generation_config.json"):
        for source in Path(tokenizer).glob(pattern):
            if source.is_dir():
                shutil.copytree(source, folder / source.name)
            else:
                shutil.copyfile(source, folder / source.name)
