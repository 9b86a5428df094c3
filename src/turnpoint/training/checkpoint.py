"""Checkpoints that are complete or do not count: tensors as safetensors, the rest as JSON, no pickle.

    FOLDER/step-00000120/state.safetensors    `Trainer.state_dict`: masters, moments, steps
                         metadata.json        what the caller wants back

One is written beside its place, flushed to the disk and renamed there. A crash leaves a folder whose name
starts with a dot, which readers never look at and the next save removes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from turnpoint.errors import RunFolderError
from turnpoint.types import Json

_NAME = re.compile(r"step-(\d{8,})")
_STATE, _HEADER = "state.safetensors", "checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """What was saved after `step` steps."""

    step: int
    state: Mapping[str, Tensor]  # for `Trainer.load_state_dict`
    metadata: Mapping[str, Json]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes `checkpoint` below `folder` and returns its own folder; one of the same step is replaced.

    Raises RunFolderError when it cannot be written; those of other steps are then as they were.
    """
    target = folder / f"step-{checkpoint.step:08d}"
    partial, replaced = folder / f".{target.name}-partial", folder / f".{target.name}-replaced"
    try:
        for abandoned in folder.glob(".step-*"):
            shutil.rmtree(abandoned)
        partial.mkdir(parents=True)
        _write(partial, checkpoint)
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        _flush(folder)
        if replaced.exists():
            shutil.rmtree(replaced)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"checkpoint {target} cannot be written: {error}") from error
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Returns what `save_checkpoint` wrote to `path`, on the CPU; raises RunFolderError if it cannot."""
    try:
        header = json.loads((path / _HEADER).read_text(encoding="utf-8"))
        state = safetensors.torch.load_file(path / _STATE)
        return Checkpoint(step=header["step"], state=state, metadata=header["metadata"])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunFolderError(f"checkpoint {path} cannot be read: {error}") from error


def latest_checkpoint(folder: Path) -> Path | None:
    """Returns the folder of the latest complete checkpoint below `folder`, if there is one."""
    steps = {int(match[1]): path for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))}
    return steps[max(steps)] if steps else None


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.state.items()}
    safetensors.torch.save_file(tensors, folder / _STATE)
    header = {"step": checkpoint.step, "metadata": dict(checkpoint.metadata)}
    (folder / _HEADER).write_text(json.dumps(header, indent=2, allow_nan=False), encoding="utf-8")
    for path in (folder / _STATE, folder / _HEADER, folder):
        _flush(path)


def _flush(path: Path) -> None:
    """Waits until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
