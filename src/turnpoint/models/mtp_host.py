"""What draft heads take from a decoder: the form of its last layer and norms, its embedding, its head.

Which modules these are, and what a layer is called with, is seen by running the model once, so that no
architecture has to be known; a model whose layers want something that is not understood is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, cast

import torch
from torch import Tensor, nn

from turnpoint.errors import ModelError
from turnpoint.models.adapter import merged_copy
from turnpoint.models.attention import IMPLEMENTATION, AttentionLayout, CausalLayout, register
from turnpoint.models.decoder import Decoder

_TRACELESS = 1e-4  # of a norm's largest weight


class _Given(Enum):
    """What a layer is given anew in every pass."""

    HIDDEN = "hidden"
    POSITIONS = "positions"
    POSITIONS_OF_THREE = "positions, the same for each of three axes"
    ROTATIONS = "rotations"
    LAYOUT = "layout"


class Host:
    """A transformers causal language model, seen as what draft heads are made from and fed by.

    `model` is the transformers model itself; `vocab_size` is the number of ids that the tokenizer knows.
    Raises ModelError when the model's last layer cannot be run on its own.
    """

    def __init__(self, model: Any, *, vocab_size: int) -> None:
        register()
        model.set_attn_implementation(IMPLEMENTATION)
        model.eval()
        self.model = model
        self.vocab_size = vocab_size
        self.config = model.config.get_text_config(decoder=True)
        self.backbone = cast(nn.Module, model.base_model)
        self.embedding: nn.Module = model.get_input_embeddings()
        self.head: nn.Module = model.get_output_embeddings()
        self.list_name, self.layer = _last_layer(self.backbone, self.config, type(model).__name__)
        self._learn()
        self._check()

    @property
    def num_layers(self) -> int:
        """How many layers the backbone has."""
        return self.config.num_hidden_layers

    @property
    def embedding_weight(self) -> Tensor:
        """The weight of the input embedding, [rows, D]."""
        return cast(Tensor, self.embedding.weight)

    @property
    def width(self) -> int:
        """D, the size of a hidden state."""
        return self.embedding_weight.shape[1]

    def new_layer(self) -> nn.Module:
        """Returns a copy of the last layer, an adapter in it merged, all of it to be trained."""
        return merged_copy(self.layer).requires_grad_(True)

    def new_norm(self) -> nn.Module:
        """Returns a copy of the final norm, to be trained."""
        return copy.deepcopy(self.norm).requires_grad_(True)

    @torch.no_grad()
    def norms_are_deltas(self) -> bool:
        """Returns whether a norm of weight zero lets its input through: it multiplies by 1 + weight."""
        norm = copy.deepcopy(self.norm)
        for weight in norm.parameters():
            weight.zero_()
        one = torch.ones(
            1, self.width, dtype=self.embedding_weight.dtype, device=self.embedding_weight.device
        )
        return bool(norm(one).any())

    def embed(self, token_ids: Tensor) -> Tensor:
        """Returns the backbone's embeddings, [n, D], detached."""
        with torch.no_grad():
            return self.embedding(token_ids)

    def run(self, layer: nn.Module, hidden: Tensor, positions: Tensor, layout: AttentionLayout) -> Tensor:
        """Returns what `layer`, of the form of the last one, makes of a flat row [T, D], [T, D]."""
        values: dict[_Given, Any] = {
            _Given.HIDDEN: hidden.unsqueeze(0),
            _Given.POSITIONS: positions.unsqueeze(0),
            _Given.POSITIONS_OF_THREE: positions.expand(3, 1, -1),
            _Given.LAYOUT: layout,
        }
        if self._rotary is not None:
            values[_Given.ROTATIONS] = _called(self._rotary, self._rotary_call, values)
        return _row(_called(layer, self._layer_call, values))

    @contextmanager
    def watching_final_norm(self) -> Generator[list[Tensor]]:
        """Collects what the final norm is given in passes of the backbone, [T, D] each, detached."""
        with _watching(self.norm) as seen:
            yield seen

    @torch.no_grad()
    def before_final_norm(self, final: Tensor) -> Tensor:
        """Returns what the final norm made `final` [T, D] of, up to each row's scale and mean.

        A norm that follows takes those away, too. Raises ModelError where a weight of the norm is next to
        nothing, which leaves no trace of what it multiplied.
        """
        signs = torch.ones_like(self.embedding_weight[:1])
        signs[:, 1::2] = -1  # of mean 0 and mean square 1: normed they are themselves
        shift = self.norm(torch.zeros_like(signs))
        scale = (self.norm(signs) - shift) * signs
        if bool((scale.abs() < _TRACELESS * scale.abs().max()).any()):
            raise ModelError(
                f"{type(self.model).__name__}: its final norm has weights next to 0; draft heads that take "
                f"states from before it cannot draft in an engine"
            )
        return (final - shift) / scale

    @contextmanager
    def watching_last_layer(self) -> Generator[list[Tensor]]:
        """Collects what the last layer is given in passes of the backbone, [T, D] each, detached."""
        with _watching(self.layer) as seen:
            yield seen

    @torch.no_grad()
    def _learn(self) -> None:
        device = self.embedding_weight.device
        ids = torch.arange(8, device=device) % len(self.embedding_weight)
        positions = torch.arange(8, device=device).unsqueeze(0)
        calls = _Calls([self.layer, *self.backbone.children()])
        with calls:
            final = self._backbone_output(ids, positions)
        name = type(self.model).__name__
        norms = [
            module for module, _, _, output in calls.made if module is not self.layer and _same(output, final)
        ]
        if not norms or (own := calls.of(self.layer)) is None:
            raise ModelError(f"{name}: its final norm was not found; draft heads cannot be made from it")
        self.norm: nn.Module = norms[-1]
        self._rotary: nn.Module | None = None
        for module, given, named, output in calls.made:
            if any(value is output for value in [*own[0], *own[1].values()]):
                self._rotary = module
                self._rotary_call = _recipe(given, named, positions, None, f"{name}.{type(module).__name__}")
                rotations = output
        known = None if self._rotary is None else rotations  # type: ignore[possibly-undefined]
        self._layer_call = _recipe(*own, positions, known, name)

    def _backbone_output(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.backbone(
            input_ids=ids.unsqueeze(0), position_ids=positions, use_cache=False, layout=CausalLayout()
        ).last_hidden_state

    @torch.no_grad()
    def _check(self) -> None:
        """Raises ModelError unless the last layer, run on its own, does what it does in the model."""
        device = self.embedding_weight.device
        positions = torch.arange(2, 8, device=device)
        calls = _Calls([self.layer])
        with calls:
            self._backbone_output(positions % len(self.embedding_weight), positions.unsqueeze(0))
        _, given, named, expected = calls.made[-1]
        hidden = (given[0] if given else named["hidden_states"])[0]
        actual = self.run(self.layer, hidden, positions, CausalLayout())
        if not torch.equal(actual, _row(expected)):
            raise ModelError(
                f"{type(self.model).__name__}: its last layer does something else on its own than in the "
                f"model; draft heads cannot be made from it"
            )


def host_of(decoder: Decoder) -> Host:
    """Returns what draft heads take from `decoder`: from the weights that train, if these are packed."""
    return Host(decoder.model, vocab_size=decoder.vocab_size)


def _last_layer(backbone: nn.Module, config: Any, name: str) -> tuple[str, nn.Module]:
    for list_name, child in backbone.named_children():
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers:
            return list_name, child[-1]
    raise ModelError(f"{name}: its layers are no list of {config.num_hidden_layers}; no draft heads for it")


@contextmanager
def _watching(module: nn.Module) -> Generator[list[Tensor]]:
    seen: list[Tensor] = []

    def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append((given[0] if given else named["hidden_states"]).detach()[0])

    hook = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


def _same(output: Any, final: Tensor) -> bool:
    return isinstance(output, Tensor) and output.shape == final.shape and torch.equal(output, final)


class _Calls:
    """Notes how modules are called and what they return, while it is entered."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules
        self.made: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = []

    def __enter__(self) -> None:
        def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            self.made.append((module, given, named, output))

        self._hooks = [module.register_forward_hook(note, with_kwargs=True) for module in self._modules]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def of(self, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Returns what `module` was called with last."""
        return next(((given, named) for it, given, named, _ in reversed(self.made) if it is module), None)


_Recipe = tuple[tuple[Any, ...], dict[str, Any]]


def _recipe(
    given: tuple[Any, ...], named: Mapping[str, Any], positions: Tensor, rotations: Any, name: str
) -> _Recipe:
    """Returns a call with what changes from pass to pass replaced by what it is."""

    def kind(value: Any, where: str) -> Any:
        if value is rotations and value is not None:
            return _Given.ROTATIONS
        if isinstance(value, AttentionLayout):
            return _Given.LAYOUT
        if isinstance(value, Tensor):
            if value.is_floating_point() and value.dim() == 3 and where in ("0", "hidden_states", "x"):
                return _Given.HIDDEN
            if value.shape == positions.shape and torch.equal(value, positions):
                return _Given.POSITIONS
            if value.shape == (3, *positions.shape) and bool((value == positions).all()):
                return _Given.POSITIONS_OF_THREE
        elif value is None or isinstance(value, bool | int | float | str):
            return value
        raise ModelError(
            f"{name}: is given {where} of type {type(value).__name__}, which turnpoint does not know how to "
            f"make; no draft heads for it"
        )

    return (
        tuple(kind(value, str(place)) for place, value in enumerate(given)),
        {key: kind(value, key) for key, value in named.items()},
    )


def _row(output: Any) -> Tensor:
    """Returns the states, [T, D], in what a layer returns: [1, T, D], or a tuple that begins with it."""
    return cast("tuple[Tensor]", output)[0][0] if isinstance(output, tuple) else output[0]


def _called(module: nn.Module, recipe: _Recipe, values: Mapping[_Given, Any]) -> Any:
    given, named = recipe
    return module(
        *(values[it] if isinstance(it, _Given) else it for it in given),
        **{key: values[it] if isinstance(it, _Given) else it for key, it in named.items()},
    )
