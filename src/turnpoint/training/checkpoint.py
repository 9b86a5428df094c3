"""Checkpoints that are complete or do not count: tensors as safetensors, the rest as JSON, no pickle.

    FOLDER/step-00000120/state.safetensors    `Trainer.state_dict`: masters, moments, steps
                         checkpoint.json      what the caller wants back; size and checksum of the state

One is written beside its place, flushed to the disk and renamed there. A crash leaves a folder whose name
starts with a dot, which readers never look at and the next save removes. What happened to a checkpoint
afterwards (a copy cut short, a bad disk) shows in its size and checksum when it is loaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from turnpoint.errors import RunFolderError
from turnpoint.types import Json

_NAME = re.compile(r"step-(\d{8,})")
_STATE, _HEADER = "state.safetensors", "checkpoint.json"
_TEACHERS = "teacher."  # what names of their tensors begin with; none of a trainer's does
_HEADS = "heads."  # the same for draft heads
_BLOCK = 1 << 20  # bytes read together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """What was saved after `step` steps."""

    step: int
    state: Mapping[str, Tensor]  # for `Trainer.load_state_dict`
    metadata: Mapping[str, Json]
    teachers: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # that changed with the policy
    heads: Mapping[str, Tensor] = field(
        default_factory=dict[str, Tensor]
    )  # draft heads that learnt beside it


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes `checkpoint` below `folder` and returns its own folder; one of the same step is replaced.

    Raises RunFolderError when it cannot be written; those of other steps are then as they were.
    """
    target = folder / f"step-{checkpoint.step:08d}"
    partial, replaced = folder / f".{target.name}-partial", folder / f".{target.name}-replaced"
    try:
        for abandoned in folder.glob(".step-*"):
            shutil.rmtree(abandoned) if abandoned.is_dir() else abandoned.unlink()
        partial.mkdir(parents=True)
        _write(partial, checkpoint)
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"checkpoint {target} cannot be written: {error}") from error
    finally:
        for done_with in (partial, replaced):
            shutil.rmtree(done_with, ignore_errors=True)  # on a full disk, above all
    return target


def prune_checkpoints(folder: Path, *, keep: int) -> None:
    """Removes all checkpoints below `folder` but the `keep` latest; raises RunFolderError when it cannot."""
    for path in _newest_first(folder)[keep:]:
        aside = folder / f".{path.name}-pruned"  # half of one must never look like one
        try:
            path.rename(aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise RunFolderError(f"checkpoint {path} cannot be removed: {error}") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Returns what `save_checkpoint` wrote to `path`, on the CPU, every byte of the state checked.

    The tensors are read from the file as they are used. Raises RunFolderError when it cannot be read or is
    not what was written.
    """
    try:
        header = json.loads((path / _HEADER).read_text(encoding="utf-8"))
        written, found = header["state"], _describe(path / _STATE)
        if written != found:
            raise ValueError(f"{_STATE} is not what was written: {found} instead of {written}")
        step, metadata = header["step"], header["metadata"]
        if type(step) is not int or step < 0 or not isinstance(metadata, dict):
            raise ValueError(f"{_HEADER} is not what was written: step {step!r}")
        tensors = safetensors.torch.load_file(path / _STATE)
        return Checkpoint(
            step=step,
            state={name: it for name, it in tensors.items() if not name.startswith((_TEACHERS, _HEADS))},
            metadata=cast(dict[str, Json], metadata),
            teachers=_of(_TEACHERS, tensors),
            heads=_of(_HEADS, tensors),
        )
    except KeyError as error:
        raise RunFolderError(f"checkpoint {path} cannot be read: {_HEADER} lacks {error}") from error
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise RunFolderError(f"checkpoint {path} cannot be read: {error}") from error


def load_latest(folder: Path, *, skipped: Callable[[str], None]) -> tuple[Path, Checkpoint] | None:
    """Returns the latest checkpoint below `folder` that can be read, and its own folder; None without any.

    `skipped` is told in one line of each later one that cannot be read. Raises RunFolderError when there are
    some and none can be read.
    """
    paths = _newest_first(folder)
    for path in paths:
        try:
            return path, load_checkpoint(path)
        except RunFolderError as error:
            skipped(f"{error}; skipped")
    if paths:
        raise RunFolderError(
            f"none of the checkpoints in {folder} can be read; nothing was changed: bring one back, or start "
            f"a new run"
        )
    return None


def latest_checkpoint(folder: Path) -> Path | None:
    """Returns the folder of the latest checkpoint below `folder`, if there is one; reads nothing in it."""
    return next(iter(_newest_first(folder)), None)


def _newest_first(folder: Path) -> list[Path]:
    steps = {int(match[1]): path for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))}
    return [steps[step] for step in sorted(steps, reverse=True)]


def _of(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): it for name, it in tensors.items() if name.startswith(prefix)}


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    teachers = {f"{_TEACHERS}{name}": tensor for name, tensor in checkpoint.teachers.items()}
    heads = {f"{_HEADS}{name}": tensor for name, tensor in checkpoint.heads.items()}
    everything = {**checkpoint.state, **teachers, **heads}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in everything.items()}
    safetensors.torch.save_file(tensors, folder / _STATE)
    header = {
        "step": checkpoint.step,
        "metadata": dict(checkpoint.metadata),
        "state": _describe(folder / _STATE),
    }
    (folder / _HEADER).write_text(json.dumps(header, indent=2, allow_nan=False), encoding="utf-8")
    for path in (folder / _STATE, folder / _HEADER, folder):
        _flush(path)


def _describe(path: Path) -> dict[str, int]:
    """Returns the size and checksum of a file: they find accidents, not attackers."""
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return {"bytes": size, "crc32": checksum}


def _flush(path: Path) -> None:
    """Waits until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
