"""Draft heads by the names their families give the tensors, out of a checkpoint and back.

What a decoder layer's own tensors are called, and how experts are stored, is the host's affair: transformers
converts them as it does those of the backbone's layers. Its own `MtpModel` is not used: it knows one wiring
(embedding first, state after the final norm), only models whose configuration counts such heads, and loads
from the folder that the backbone came from alone.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import conversion_mapping, core_model_loading
from transformers.modeling_utils import LoadStateDictConfig

from turnpoint.errors import ModelError
from turnpoint.models.mtp import Fusion, MtpHeads
from turnpoint.models.mtp_host import Host
from turnpoint.models.mtp_layout import MtpLayout, TensorNames, mtp_layout
from turnpoint.models.pretrained import first_line, quiet

_conversion: Any = conversion_mapping  # neither is typed
_loading: Any = core_model_loading

_IGNORED = ".rotary_emb.inv_freq"  # a constant that some checkpoints store


def checkpoint_state(heads: MtpHeads, *, shared: bool = True) -> dict[str, Tensor]:
    """Returns copies of the tensors of `heads` by the names of their family.

    With `shared`, those that are the backbone's are among them where the family stores them once more.
    """
    state = _state(heads)
    if shared:
        state |= _shared(heads)
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def read_checkpoint(
    host: Host, layout: str | MtpLayout, tensors: Mapping[str, Tensor], *, source: str, trained_depth: int = 1
) -> MtpHeads:
    """Returns the heads that `tensors` hold by the names of `layout`, a preset or one of your own.

    Of a preset there are as many layers as the tensors number. `tensors` may hold a whole checkpoint; what
    lies among the heads' names must belong to them. Raises ModelError in one line naming `source` and the
    tensor when one is missing, unknown, of another shape, not finite, or stored in eight bits, and for an
    embedding or head of the heads' own that is not the backbone's.
    """
    if isinstance(layout, str):
        layout = mtp_layout(layout)
        given = heads_only(tensors, host, layout.names)
        layout = mtp_layout(layout.name, layers=max(1, _count(given, host, layout.names)))
    else:
        given = heads_only(tensors, host, layout.names)
    heads = MtpHeads(host, layout, trained_depth=trained_depth)
    _check(given, heads, source)
    for number, fusion in enumerate(heads.fusions):
        for stem, module in _modules(heads, number, cast(Fusion, fusion)):
            module.load_state_dict({leaf: given[f"{stem}.{leaf}"] for leaf in module.state_dict()})
    _load_blocks(heads, given, source)
    return heads


def read_checkpoint_folder(host: Host, layout: str, *, folder: str | Path) -> MtpHeads:
    """Returns the draft heads inside the checkpoint in `folder`, a Hugging Face folder of safetensors.

    Only their tensors are read. Raises ModelError as `read_checkpoint` does, and when there are none.
    """
    names = mtp_layout(layout).names
    tensors: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= read_tensors(file, partial(_belongs, host=host, names=names))
    if not tensors:
        raise ModelError(
            f"model {folder}: holds no draft heads by the names of {layout} ({names.layer}); "
            f"make new ones with fresh_heads"
        )
    return read_checkpoint(host, layout, tensors, source=f"model {folder}")


def read_tensors(file: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file whose names `wanted` accepts; ModelError if unreadable."""
    try:
        with cast(Any, safe_open)(file, framework="pt") as content:
            names: list[str] = content.keys()
            return {name: content.get_tensor(name) for name in names if wanted(name)}
    except (OSError, SafetensorError) as error:
        raise ModelError(f"draft heads {file}: cannot be read: {first_line(error)}") from error


def heads_only(tensors: Mapping[str, Tensor], host: Host, names: TensorNames) -> dict[str, Tensor]:
    """Returns those of `tensors` whose names lie among the heads'."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if _belongs(name, host, names) and not name.endswith(_IGNORED)
    }


def _name(host: Host, names: TensorNames, template: str, number: int) -> str:
    return template.format(index=number + (host.num_layers if names.counts_on else 0))


def _belongs(name: str, host: Host, names: TensorNames) -> bool:
    return _index(name, host, names) is not None


def _index(name: str, host: Host, names: TensorNames) -> int | None:
    """Returns the number of the layer that a tensor belongs to, 0 where layers share it; None: no head's."""
    prefix, stem = names.layer.partition("{index}")[0], names.layer.partition(".")[0]
    if not name.startswith(f"{stem}." if "{index}" not in names.projection else prefix):
        return None
    numbered = re.match(re.escape(prefix) + r"(\d+)\.", name)
    if numbered is None:
        return None if names.counts_on else 0
    index = int(numbered[1]) - (host.num_layers if names.counts_on else 0)
    return index if index >= 0 else None


def _count(given: Mapping[str, Tensor], host: Host, names: TensorNames) -> int:
    return 1 + max((_index(name, host, names) or 0 for name in given), default=-1)


def _state(heads: MtpHeads) -> dict[str, Tensor]:
    host, names = heads.host, heads.layout.names
    state: dict[str, Tensor] = {}
    for number, fusion in enumerate(heads.fusions):
        for stem, module in _modules(heads, number, cast(Fusion, fusion)):
            state |= {f"{stem}.{leaf}": tensor for leaf, tensor in module.state_dict().items()}
    for number, leaf, tensor in _stored(host, heads.blocks):
        state[f"{_name(host, names, names.layer, number)}.{leaf}"] = tensor
    return state


def _modules(heads: MtpHeads, number: int, fusion: Fusion) -> Iterator[tuple[str, nn.Module]]:
    names = heads.layout.names
    for template, module in (
        (names.embedding_norm, fusion.embedding_norm),
        (names.hidden_norm, fusion.hidden_norm),
        (names.projection, fusion.projection),
        (names.final_norm, fusion.final_norm),
    ):
        yield _name(heads.host, names, template, number), module


def _shared(heads: MtpHeads) -> dict[str, Tensor]:
    host, names = heads.host, heads.layout.names
    head = cast(Tensor, host.head.weight)
    shared: dict[str, Tensor] = {}
    for number in range(heads.layout.layers):
        for template, weight in ((names.embedding, host.embedding_weight), (names.head, head)):
            if template is not None:
                shared[f"{_name(host, names, template, number)}.weight"] = weight
    return shared


def _check(given: Mapping[str, Tensor], heads: MtpHeads, source: str) -> None:
    name = f"{source}: draft heads of layout {heads.layout.name}"
    expected, shared = _state(heads), _shared(heads)
    if missing := sorted(set(expected) - set(given)):
        raise ModelError(f"{name}: {len(missing)} tensors are missing, for example {missing[0]}")
    if unknown := sorted(set(given) - set(expected) - set(shared)):
        eight = " (their weights are quantised: convert them first)" if "_scale" in unknown[0] else ""
        raise ModelError(f"{name}: {len(unknown)} tensors have no place, for example {unknown[0]}{eight}")
    for key, tensor in given.items():
        place = expected.get(key, shared.get(key, tensor))
        if tensor.shape != place.shape:
            raise ModelError(
                f"{name}: {key} is of shape {list(tensor.shape)}, for this backbone it would be "
                f"{list(place.shape)}"
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ModelError(f"{name}: {key} is quantised ({tensor.dtype}); convert the weights first")
        if not bool(tensor.isfinite().all()):
            raise ModelError(f"{name}: {key} holds NaN or infinity; it was damaged in training")
        if key in shared and not torch.equal(tensor.to(place), place):
            raise ModelError(
                f"{name}: {key} is not the backbone's; turnpoint's heads share it and would draft noise"
            )


def _stored(host: Host, blocks: nn.ModuleList) -> Iterator[tuple[int, str, Tensor]]:
    """Yields number, name within the layer and tensor of the decoder layers, as checkpoints store them."""
    twin, prefix = _twin(host, blocks)
    state = {
        f"{prefix}.{number}.{leaf}": tensor
        for number, block in enumerate(blocks)
        for leaf, tensor in block.state_dict().items()
    }
    stored: dict[str, Tensor] = _loading.revert_weight_conversion(twin, state)
    for name, tensor in stored.items():
        number, _, leaf = name.removeprefix(f"{prefix}.").partition(".")
        yield int(number), leaf, tensor


def _load_blocks(heads: MtpHeads, given: Mapping[str, Tensor], source: str) -> None:
    host, names = heads.host, heads.layout.names
    twin, prefix = _twin(host, heads.blocks)
    state = {
        f"{prefix}.{number}.{leaf}": given[f"{_name(host, names, names.layer, number)}.{leaf}"].clone()
        for number, leaf, _ in _stored(host, heads.blocks)
    }
    load = LoadStateDictConfig(
        weight_mapping=twin._weight_conversions, device_map={"": host.embedding_weight.device}
    )
    with quiet():
        info, _ = _loading.convert_and_load_state_dict_in_model(
            model=twin, state_dict=state, load_config=load
        )
    if lost := [*info.unexpected_keys, *info.mismatched_keys, *info.conversion_errors]:
        raise ModelError(f"{source}: draft heads: transformers cannot convert {lost[0]}")


def _twin(host: Host, blocks: nn.ModuleList) -> tuple[Any, str]:
    """Returns the host with `blocks` in place of its layers, all else shared, and what they are called."""
    backbone = _with(host.backbone, {host.list_name: blocks})
    twin: Any = _with(host.model, {host.model.base_model_prefix: backbone})
    conversions: Any = _conversion.get_model_conversion_mapping(host.model, add_legacy=False)
    twin._weight_conversions = [it for it in conversions if not isinstance(it, _loading.PrefixChange)]
    return twin, f"{host.model.base_model_prefix}.{host.list_name}"


def _with(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    twin = copy.copy(module)
    vars(twin)["_modules"] = {**vars(module)["_modules"], **children}
    return twin
