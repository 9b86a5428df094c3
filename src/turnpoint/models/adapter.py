"""LoRA adapters (arXiv 2106.09685) by peft: put into a model, read from a folder, merged, taken out.

    W x  becomes  W x + (alpha / rank) B A x        W frozen; A [rank, in] random, B [out, rank] zero at first

peft replaces layers of the transformers model in place and wraps nothing, so that engine and trainer go on
sharing one `Decoder`. Only an adapter's tensors require a gradient, and what requires one is what is
optimised, published and checkpointed. They compute in the model's dtype and have float32 masters like any
other weight; dropout is off, since the sampler and the trainer must see one law.
"""

from __future__ import annotations

import copy
import importlib
import json
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from turnpoint.errors import ModelError
from turnpoint.models.pretrained import first_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's names

_NAME = "default"  # peft's, for the one adapter of a model
_PREFIX = "base_model.model."  # what names in a folder begin with: those of a model that peft wrapped

# What a saved configuration may say. Anything else that is set would train or compute something else.
_KEPT = (
    "r",
    "lora_alpha",
    "target_modules",
    "exclude_modules",
    "fan_in_fan_out",
    "use_rslora",
    "use_dora",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
)
_WITHOUT_EFFECT = (
    "peft_type",
    "task_type",
    "peft_version",
    "auto_mapping",
    "inference_mode",
    "runtime_config",
    "base_model_name_or_path",
    "revision",
    "lora_dropout",
    "init_lora_weights",
)
_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")  # that leave the base's weights alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The adapter that a model carries."""

    config: Any  # a peft.LoraConfig
    ranks: tuple[int, ...]  # without repetition, rising; one but for patterns
    matrices: int  # of the model that it adds to
    parameters: int  # that train
    notes: tuple[str, ...]  # what its user should know


def require_peft() -> Any:
    """Returns the module peft; raises ModelError with the way out when it is not installed."""
    try:
        return importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise ModelError(f"model.adapter: needs {error.name}: pip install 'turnpoint[peft]'") from error


def add_adapter(model: Any, *, rank: int, alpha: float, modules: Sequence[str] = (), seed: int) -> Adapter:
    """Puts a new adapter into `model`, in place; its law is that of the model until B is trained.

    `modules`: names of linear layers, or ends of them (q_proj, layers.0.mlp.up_proj); empty: all but the
    output head. A is a function of `seed` and the model's layers; no global generator moves. Raises
    ModelError for a name that no linear layer has, and for a head that shares its weight with the embedding.
    """
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    for wanted in modules:
        if not any(f".{name}".endswith(f".{wanted}") for name in layers):
            known = dict.fromkeys(name.rpartition(".")[2] for name in layers)
            raise ModelError(
                f"model.adapter.modules: {wanted!r} is no linear layer of the model; "
                f"it has {', '.join(known)}"
            )
    config = require_peft().LoraConfig(
        r=rank,
        lora_alpha=int(alpha) if alpha == int(alpha) else alpha,
        target_modules=list(modules) or "all-linear",
        task_type="CAUSAL_LM",
    )
    _inject(model, config, seed=seed, name="model.adapter")
    return _adapter(model, config, notes=())


def load_adapter(model: Any, *, folder: Path, base: str) -> Adapter:
    """Puts the adapter that peft saved in `folder` into `model`, in place, to be trained further.

    `base` is what `model` was loaded as; an adapter that names another is noted, not refused. Raises
    ModelError for files that are missing or damaged, tensors that do not fit the model or are not finite,
    and for whatever is no trained low-rank addition to frozen linear layers.
    """
    name = f"adapter {folder}"
    tree = _read_config(folder)
    _check_config(tree, name)
    with _one_line(name, f"{WEIGHTS} cannot be read"):
        state = safetensors.torch.load_file(folder / WEIGHTS)
    with _one_line(name, f"{CONFIG} cannot be used"):
        kept = {key: tree[key] for key in _KEPT if key in tree}
        config = require_peft().LoraConfig(**kept, task_type="CAUSAL_LM")
    _inject(model, config, seed=0, name=name)
    _fill(model, state, name=name)
    return _adapter(model, config, notes=tuple(_notes(tree, name=name, base=base)))


def write_adapter(model: Any, adapter: Adapter, *, base: str, folder: Path) -> None:
    """Writes the adapter of `model` to `folder` as peft does, its tensors in the type they compute in."""
    config = copy.copy(adapter.config)
    config.base_model_name_or_path = base
    config.inference_mode = True
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)
    state: dict[str, Tensor] = require_peft().get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {_PREFIX + name: tensor.cpu().contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(str(folder))


@torch.no_grad()
def merged_state(model: Any) -> dict[str, Tensor]:
    """Returns the weights of `model` by the names they have without adapter, the adapter added to them.

    Added in float32, then rounded to the model's dtype once. `model` stays as it is; other tensors than
    the merged ones share its memory.
    """
    layers = dict(_layers(model))
    inside = tuple(f"{name}." for name in layers)
    state: dict[str, Tensor] = {
        name: tensor for name, tensor in model.state_dict().items() if not name.startswith(inside)
    }
    for name, layer in layers.items():
        dtype = layer.get_base_layer().weight.dtype
        merged: Any = copy.deepcopy(layer).float()
        merged.merge()
        for leaf, tensor in merged.get_base_layer().state_dict().items():
            state[f"{name}.{leaf}"] = tensor.to(dtype)
    return state


@torch.no_grad()
def merged_copy(module: nn.Module) -> nn.Module:
    """Returns a copy of a part of a model in which plain layers stand for those with an adapter in them.

    The adapter is added as `merged_state` does; a part without one is merely copied, without peft.
    """
    return _merged(copy.deepcopy(module))


def _merged(module: nn.Module) -> nn.Module:
    if type(module).__module__.startswith("peft."):
        layer: Any = module
        dtype = layer.get_base_layer().weight.dtype
        layer.float().merge()
        return layer.get_base_layer().to(dtype)
    for name, child in module.named_children():
        setattr(module, name, _merged(child))
    return module


@torch.no_grad()
def base_state(model: Any) -> dict[str, Tensor]:
    """Returns, by name, the values of the trained tensors under which `model` is the model without adapter.

    New tensors: B is zero, and with DoRA the magnitudes are the norms of the frozen rows.
    """
    state = {name: it.detach().clone() for name, it in model.named_parameters() if it.requires_grad}
    for name, layer in _layers(model):
        state[f"{name}.lora_B.{_NAME}.weight"].zero_()
        for adapter, magnitude in layer.lora_magnitude_vector.items():
            weight, scaling = layer.get_base_layer().weight, layer.scaling[adapter]
            norms = magnitude.get_weight_norm(weight, torch.zeros((), dtype=weight.dtype), scaling)
            state[f"{name}.lora_magnitude_vector.{adapter}.weight"].copy_(norms)
    return state


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and modules of the layers that carry an adapter."""
    kind = importlib.import_module("peft.tuners.lora").LoraLayer
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def _inject(model: Any, config: Any, *, seed: int, name: str) -> None:
    # New layers are made on the CPU and then moved: no other generator than the CPU's is drawn from.
    with torch.random.fork_rng(devices=[]), _one_line(name, "does not fit the model"):
        torch.default_generator.manual_seed(seed % 2**64)
        require_peft().inject_adapter_in_model(config, model)
    for path, layer in _layers(model):
        if not isinstance(layer.get_base_layer(), nn.Linear | Conv1D):
            raise ModelError(
                f"{name}: adapts {path}, which is no linear layer; turnpoint trains linear layers"
            )
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if any(layer is head for _, layer in _layers(model)) and head.weight is embedding.weight:
        raise ModelError(
            f"{name}: adapts the output head, which shares its weight with the embedding here and could not "
            f"be merged; leave it out"
        )


def _adapter(model: Any, config: Any, *, notes: tuple[str, ...]) -> Adapter:
    layers = [layer for _, layer in _layers(model)]
    return Adapter(
        config=config,
        ranks=tuple(sorted({layer.r[_NAME] for layer in layers})),
        matrices=len(layers),
        parameters=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        notes=notes,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise ModelError(f"adapter {folder}: there is no {CONFIG}; give a folder that export or peft wrote")
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"adapter {folder}: there is no {WEIGHTS}; other forms of weights are not read")
    with _one_line(f"adapter {folder}", f"{CONFIG} cannot be read"):
        return dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))


def _check_config(tree: dict[str, Any], name: str) -> None:
    if tree.get("peft_type") != "LORA":
        raise ModelError(f"{name}: is of kind {tree.get('peft_type')}; turnpoint trains LORA")
    if tree.get("init_lora_weights") not in _STARTS:
        raise ModelError(
            f"{name}: init_lora_weights = {tree['init_lora_weights']!r} changes the weights of the base; "
            f"convert it to plain LoRA with peft first"
        )
    default = require_peft().LoraConfig().to_dict()
    for key, value in tree.items():
        if key not in (*_KEPT, *_WITHOUT_EFFECT) and value and value != default.get(key):
            raise ModelError(
                f"{name}: {key} = {value!r} is more than a low-rank addition to frozen linear layers; "
                f"turnpoint trains nothing else"
            )


def _fill(model: Any, state: dict[str, Tensor], *, name: str) -> None:
    with _one_line(name, "does not fit the model"):
        result = require_peft().set_peft_model_state_dict(model, state, ignore_mismatched_sizes=True)
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    if unknown := list(result.unexpected_keys):
        raise ModelError(
            f"{name}: belongs to another model: this one has no place for {len(unknown)} of its tensors, "
            f"for example {unknown[0]}"
        )
    if missing := [key for key in result.missing_keys if key in trained]:
        raise ModelError(
            f"{name}: belongs to another model: {len(missing)} tensors are missing or have another shape, "
            f"for example {missing[0]}"
        )
    for key, weight in trained.items():
        if not bool(weight.isfinite().all()):
            raise ModelError(f"{name}: {key} holds NaN or infinity; it was damaged in training")


def _notes(tree: dict[str, Any], *, name: str, base: str) -> Iterator[str]:
    if tree.get("lora_dropout"):
        yield f"{name}: its dropout of {tree['lora_dropout']:g} is off: sampler and trainer must see one law"
    other = tree.get("base_model_name_or_path")
    if other and Path(other).name.casefold() != Path(base).name.casefold():
        yield f"{name}: was trained on {other} and goes on with {base}"


@contextmanager
def _one_line(name: str, what: str) -> Generator[None]:
    """Turns whatever is raised into one line, and silences warnings: what matters in them is checked here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModelError:
        raise
    except Exception as error:  # of many kinds: peft checks little of what it is given
        raise ModelError(f"{name}: {what}: {first_line(error)}") from error
