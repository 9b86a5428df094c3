"""Draft heads in a folder of their own, which says what they are and whose."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from turnpoint.errors import ModelError, RunFolderError
from turnpoint.models.decoder import Decoder
from turnpoint.models.folders import staged
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_checkpoints import (
    checkpoint_state,
    read_checkpoint,
    read_checkpoint_folder,
    read_tensors,
)
from turnpoint.models.mtp_host import Host, host_of
from turnpoint.models.mtp_layout import MtpLayout, layout_tree, read_layout
from turnpoint.models.mtp_parallel import ParallelHeads
from turnpoint.models.pretrained import first_line

DESCRIPTION, WEIGHTS = "draft_heads.json", "draft_heads.safetensors"
_FORMAT = 1
_KEYS = {"format", "layout", "trained_depth", "backbone"}

DraftHeads = MtpHeads | ParallelHeads


def save_heads(heads: DraftHeads, folder: str | Path) -> Path:
    """Writes `heads` to `folder`, whole or not at all; returns it.

    The tensors have the names of their family, without what is the backbone's. Earlier heads are replaced;
    raises RunFolderError for any other folder that is not empty, and when the disk refuses.
    """
    folder = Path(folder)
    if folder.exists() and not (
        folder.is_dir() and ((folder / DESCRIPTION).is_file() or not any(folder.iterdir()))
    ):
        raise RunFolderError(f"draft heads {folder}: exists and holds no draft heads; choose another folder")
    tree: dict[str, Any] = {
        "format": _FORMAT,
        "layout": layout_tree(heads.layout),
        "trained_depth": heads.trained_depth,
        "backbone": fingerprint(heads.host),
    }
    try:
        with staged(folder, replace=True) as new:
            state = {name: it.cpu().contiguous() for name, it in _state(heads).items()}
            safetensors.torch.save_file(state, new / WEIGHTS, metadata={"format": "pt"})
            (new / WEIGHTS).chmod(0o644)  # safetensors writes for its owner alone
            (new / DESCRIPTION).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"draft heads {folder}: cannot be written: {first_line(error)}") from error
    return folder


def load_heads(decoder: Decoder, folder: str | Path, *, retrained: bool = False) -> DraftHeads:
    """Returns the draft heads in `folder`, for `decoder`.

    Raises ModelError in one line when files are missing or damaged, when layout or tensors are not what
    they should be, and when the heads were made for another backbone: another architecture, size or
    vocabulary, or another embedding. `retrained` allows for the latter: the same model with other weights,
    such as before or after a run; the drafts stay exact, but fewer may be accepted.
    """
    folder, host = Path(folder), host_of(decoder)
    source = f"draft heads {folder}"
    tree = _read(folder, source)
    layout = read_layout(tree["layout"], source=source)
    _check_backbone(tree["backbone"], fingerprint(host), source, retrained=retrained)
    tensors = read_tensors(folder / WEIGHTS, bool)
    if isinstance(layout, MtpLayout):
        return read_checkpoint(host, layout, tensors, source=source, trained_depth=tree["trained_depth"])
    heads = ParallelHeads(host, layout, trained_depth=tree["trained_depth"])
    shapes = {name: it.shape for name, it in heads.state_dict().items()}
    if wrong := sorted(set(shapes.items()) ^ {(name, it.shape) for name, it in tensors.items()}):
        raise ModelError(f"{source}: {wrong[0][0]} is missing, has no place or is of another shape")
    heads.load_state_dict(tensors)
    return heads


def load_checkpoint_heads(decoder: Decoder, layout: str, *, folder: str | Path) -> MtpHeads:
    """Returns the draft heads inside the checkpoint in `folder`, a Hugging Face folder of safetensors.

    `layout` names their family: deepseek_v3, glm4_moe, qwen3_next (and 3.5), mimo. Raises ModelError in one
    line when there are none, and when a tensor is missing, unknown, misshapen or not the backbone's.
    """
    return read_checkpoint_folder(host_of(decoder), layout, folder=folder)


def fingerprint(host: Host) -> dict[str, Any]:
    """Returns what tells one backbone from another, as JSON holds it.

    The checksum is that of the embedding rounded to bfloat16, so that the same weights are the same in
    whichever type they were loaded.
    """
    rounded = host.embedding_weight.detach().to("cpu", torch.bfloat16).contiguous()
    return {
        "architecture": type(host.model).__name__,
        "layers": host.num_layers,
        "width": host.width,
        "rows": len(host.embedding_weight),
        "vocabulary": host.vocab_size,
        "embedding_sha256": hashlib.sha256(cast(Any, rounded.view(torch.uint8).numpy())).hexdigest(),
    }


def _state(heads: DraftHeads) -> dict[str, Tensor]:
    return checkpoint_state(heads, shared=False) if isinstance(heads, MtpHeads) else heads.state_dict()


def _read(folder: Path, source: str) -> dict[str, Any]:
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"{source}: there is no {name}; give the folder of heads that turnpoint draft wrote"
            )
    try:
        tree: Any = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{source}: {DESCRIPTION} cannot be read: {first_line(error)}") from error
    if not isinstance(tree, dict) or set(cast(Any, tree)) != _KEYS or tree["format"] != _FORMAT:
        raise ModelError(f"{source}: {DESCRIPTION} is not of format {_FORMAT}, the one this version reads")
    known = cast("dict[str, Any]", tree)
    depth, backbone = known["trained_depth"], known["backbone"]
    if type(depth) is not int or depth < 0 or not isinstance(backbone, dict):
        raise ModelError(f"{source}: {DESCRIPTION} does not say whose heads they are and how deep trained")
    return known


def _check_backbone(theirs: dict[str, Any], ours: dict[str, Any], source: str, *, retrained: bool) -> None:
    for key, value in ours.items():
        if theirs.get(key) == value:
            continue
        if key == "embedding_sha256":
            if retrained:
                continue
            raise ModelError(
                f"{source}: were made for other weights than this backbone has (its embedding differs); "
                f"to use them all the same: retrained=True"
            )
        raise ModelError(
            f"{source}: were made for another backbone: {key} {theirs.get(key)!r}, this one has {value!r}"
        )
