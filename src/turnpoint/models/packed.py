"""A decoder for sampling on CPUs: its weights once more, in the order in which the processor reads them.

torch brings the weights of a linear layer into blocks for every product anew, which takes longer than the
product itself while few tokens are in a step. Here they stay in blocks (oneDNN's, as torch.compile keeps
them), and layers that are given the same input (query, key and value; gate and up) are one product. Which
these are is seen by running the model, so that no architecture has to be known. Costs the memory of the
linear layers a second time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder

_TOKENS = 128  # for which the blocks are laid out; others are hardly slower


def packed(decoder: Decoder) -> Decoder:
    """Returns a decoder with the law of `decoder`, up to rounding, that computes no gradients.

    It follows the weights of `decoder.model`: what was packed is packed anew when they change. On devices
    and in types for which there are no blocks it is `decoder` itself.
    """
    if not _can_pack(decoder):
        return decoder
    twins: dict[nn.Module, nn.Module] = {}
    for layers in [*_sharing_an_input(decoder), *([layer] for layer in _linear(decoder.head))]:
        product = _Product(layers)
        twins |= {layer: _Part(layer, product, number) for number, layer in enumerate(layers)}
    twin = copy.copy(decoder)
    twin.backbone = _twin(decoder.backbone, twins)
    twin.head = _twin(decoder.head, twins)
    return twin


def packed_bytes(decoder: Decoder) -> int:
    """Returns what the second copy takes once something was sampled."""
    if not _can_pack(decoder):
        return 0
    layers = [*_linear(decoder.backbone), *_linear(decoder.head)]
    return sum(layer.weight.numel() for layer in layers) * decoder.dtype.itemsize


def _can_pack(decoder: Decoder) -> bool:
    if decoder.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    ops = _ops().mkldnn
    return decoder.dtype == torch.float32 or (
        decoder.dtype == torch.bfloat16 and bool(ops._is_mkldnn_bf16_supported())
    )


class _Product:
    """The product of an input with the weights of several layers."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
        self._sizes = [layer.out_features for layer in layers]
        self._versions: list[int] = []  # of the weights, when they were packed
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def part(self, number: int, given: Tensor) -> Tensor:
        """Returns the output of one layer; the last one to ask for its part frees all."""
        if given is not self._input:
            self._input, self._outputs = given, torch.split(self._compute(given), self._sizes, dim=-1)
        output = self._outputs[number]
        if number == len(self._layers) - 1:
            self._input, self._outputs = None, ()
        return output

    def _compute(self, given: Tensor) -> Tensor:
        versions = [weight._version for layer in self._layers for weight in layer.parameters()]
        if versions != self._versions:
            self._pack()
            self._versions = versions
        return _ops().mkldnn._linear_pointwise(given, self._weight, self._bias, "none", [], "")

    def _pack(self) -> None:
        weights: list[Tensor] = [layer.weight.detach() for layer in self._layers]
        biases = [bias.detach() for layer in self._layers if (bias := _bias(layer)) is not None]
        self._weight: Tensor = _ops().mkldnn._reorder_linear_weight(torch.cat(weights), _TOKENS)
        self._bias = torch.cat(biases) if biases else None


class _Part(nn.Module):
    """Stands in for a linear layer; hooks on the layer see it."""

    def __init__(self, layer: nn.Linear, product: _Product, number: int) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias  # who wraps a layer may look at them
        self._product, self._number = product, number
        vars(self).update({name: own for name, own in vars(layer).items() if name.startswith("_forward")})

    def forward(self, given: Tensor) -> Tensor:
        return self._product.part(self._number, given)


def _ops() -> Any:
    return cast(Any, torch.ops)  # torch.ops are not typed


def _linear(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if type(layer) is nn.Linear]


def _bias(layer: nn.Linear) -> Tensor | None:
    return cast(Any, layer).bias  # typed as if there always were one


@torch.no_grad()
def _sharing_an_input(decoder: Decoder) -> list[list[nn.Linear]]:
    """Returns the linear layers of the backbone, those that are given the same tensor together."""
    calls: list[tuple[nn.Linear, Tensor]] = []

    def note(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        calls.append((cast(nn.Linear, layer), arguments[0]))

    hooks = [layer.register_forward_pre_hook(note) for layer in _linear(decoder.backbone)]
    token = torch.zeros(1, dtype=torch.long, device=decoder.device)
    decoder.hidden(token, token, CausalLayout())
    for hook in hooks:
        hook.remove()
    called = [layer for layer, _ in calls]
    groups: dict[tuple[int, bool], list[nn.Linear]] = {}
    for layer, given in calls:
        if called.count(layer) == 1:
            groups.setdefault((id(given), _bias(layer) is None), []).append(layer)
    return list(groups.values())


def _twin(module: nn.Module, twins: dict[nn.Module, nn.Module]) -> nn.Module:
    """Returns `module` with the layers in `twins` replaced; parameters are the same."""
    if module not in twins:
        twins[module] = copy.copy(module)
        children: dict[str, nn.Module | None] = vars(module)["_modules"]
        vars(twins[module])["_modules"] = {
            name: child and _twin(child, twins) for name, child in children.items()
        }
    return twins[module]
