"""Writing a policy as a normal Hugging Face folder, or its adapter alone as peft does."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import GenerationConfig

from turnpoint.errors import RunFolderError
from turnpoint.models.adapter import Adapter, merged_state, write_adapter
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


def export_model(
    decoder: Decoder, *, tokenizer: str | Path | Any, folder: str | Path, adapter: Adapter | None = None
) -> Path:
    """Writes weights, configuration and tokenizer to `folder`, whole or not at all; returns it.

    `tokenizer` is the folder that the policy was loaded from, whose tokenizer files and generation
    configuration are copied byte for byte, or a transformers tokenizer to save. `adapter`, which `decoder`
    carries, is added to the weights it adapts, as `merged_state` does. Tied weights stay tied; the weights
    keep their dtype. An earlier export is replaced; raises RunFolderError for any other folder that is not
    empty, and when the disk refuses.
    """
    folder = Path(folder)
    with _export(folder) as new:
        state = None if adapter is None else merged_state(decoder.model)
        with quiet():
            _savable(decoder.model).save_pretrained(new, state_dict=state)
        _write_tokenizer(tokenizer, new)
    return folder


def export_adapter(decoder: Decoder, *, adapter: Adapter, base: str, folder: str | Path) -> Path:
    """Writes the adapter that `decoder` carries to `folder`, whole or not at all; returns it.

    peft loads it onto `base`, the model that it was trained on. Replaces and raises as `export_model` does.
    """
    folder = Path(folder)
    with _export(folder) as new:
        write_adapter(decoder.model, adapter, base=base, folder=new)
    return folder


@contextmanager
def _export(folder: Path) -> Generator[Path]:
    if folder.exists() and not (folder.is_dir() and _may_replace(folder)):
        raise RunFolderError(f"export {folder}: exists and is no export of turnpoint; choose another folder")
    try:
        with staged(folder, replace=True) as new:
            yield new
            for file in new.iterdir():
                file.chmod(0o644)  # safetensors writes for its owner alone
            (new / MARK).write_text(json.dumps({"format": 1}) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"export {folder}: cannot be written: {first_line(error)}") from error


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
