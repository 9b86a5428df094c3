"""New weights into a running decoder, and the checksum by which sender and receiver compare them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from turnpoint.errors import WeightSyncError


def weights_checksum(state: Mapping[str, Tensor]) -> str:
    """Returns a checksum of names, dtypes, shapes and bytes, in the order of sorted names.

    Swapping two tensors, or two values of one, changes it. It finds mistakes, not attackers.
    """
    checksum = 0
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(content, checksum)
    return f"{checksum:08x}"


def copy_weights(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Copies `state` into the trained parameters of `model`; returns the checksum of what they then hold.

    Trained are those that require a gradient; frozen ones (the base of an adapter) are never written. The
    checksum is over the names that were sent, so it equals `weights_checksum(state)` unless something was
    lost. Tied parameters stay tied: `state` may name them once or each time, with equal values. Raises
    WeightSyncError, before anything is copied, for missing, unknown or misshapen tensors, another dtype than
    the parameter's (a cast would be no faithful delivery), and tied names that differ.
    """
    everything = model.named_parameters(remove_duplicate=False)
    parameters = {name: parameter for name, parameter in everything if parameter.requires_grad}
    given: dict[nn.Parameter, Tensor] = {}
    for name, tensor in state.items():
        parameter = _matching(parameters, name, tensor)
        if parameter in given and not torch.equal(given[parameter], tensor):
            raise WeightSyncError(f"weight {name!r} is tied to another that was sent with other values")
        given[parameter] = tensor
    missing = [name for name, parameter in parameters.items() if parameter not in given]
    if missing:
        raise WeightSyncError(f"{len(missing)} weights are missing, the first is {missing[0]!r}; send all")
    with torch.no_grad():
        for parameter, tensor in given.items():
            # free where both are one memory, and needed there too: what is made of a weight is made anew
            # when its version rises, and a fused optimiser moves it without that
            parameter.copy_(tensor)
    return weights_checksum({name: parameters[name] for name in state})


def _matching(parameters: Mapping[str, nn.Parameter], name: str, tensor: Tensor) -> nn.Parameter:
    parameter = parameters.get(name)
    if parameter is None:
        raise WeightSyncError(f"weight {name!r} is none of the model's {len(parameters)} trained ones")
    sent, own = (tensor.dtype, tuple(tensor.shape)), (parameter.dtype, tuple(parameter.shape))
    if sent != own:
        raise WeightSyncError(f"weight {name!r} is {sent[0]} {sent[1]}, the model's is {own[0]} {own[1]}")
    return parameter
