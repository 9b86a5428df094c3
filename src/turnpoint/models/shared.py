"""Weights in memory that several processes map: what one of them writes is there for all, without a copy.

The rest of whatever holds the model (its modules, a tokenizer) goes from one to the other as a pickle, in
which weights are numbers. The memory has no name and ends with the last process that maps it.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    offset: int  # bytes
    dtype: torch.dtype
    shape: torch.Size
    trained: bool


class SharedWeights:
    """Moves the parameters of `model` into memory that others can map; they stay the same parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._places: list[_Place] = []
        self._numbers: dict[int, int] = {}  # by identity; `model` keeps them alive
        end = 0
        weights = list(model.parameters())
        for number, weight in enumerate(weights):
            self._numbers[id(weight)] = number
            self._places.append(
                _Place(offset=end, dtype=weight.dtype, shape=weight.shape, trained=weight.requires_grad)
            )
            end += -(-weight.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.descriptor = _memory(max(end, 1))
        content = _map(self.descriptor)
        for weight, place in zip(weights, self._places, strict=True):
            view = _view(content, place)
            view.copy_(weight.detach())
            weight.data = view

    def dump(self, value: Any) -> bytes:
        """Returns `value` as a pickle that holds no weights; raises what pickle raises."""
        buffer = io.BytesIO()
        pickle.dump(self._places, buffer)
        _Pickler(buffer, self._numbers).dump(value)
        return buffer.getvalue()


def load_shared(content: bytes, descriptor: int) -> Any:
    """Returns what `SharedWeights.dump` was given, its weights those behind `descriptor`."""
    buffer = io.BytesIO(content)
    places: list[_Place] = pickle.load(buffer)
    memory = _map(descriptor)
    weights = [nn.Parameter(_view(memory, place), requires_grad=place.trained) for place in places]
    return _Unpickler(buffer, weights).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: Mapping[int, int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, FunctionType | type) and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__} is defined in the script itself, which another process has not got; "
                f"put it into a module of its own"
            )
        return self._numbers.get(id(obj)) if isinstance(obj, nn.Parameter) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, weights: Sequence[nn.Parameter]) -> None:
        super().__init__(file)
        self._weights = weights

    def persistent_load(self, pid: int) -> nn.Parameter:
        return self._weights[pid]


def _memory(size: int) -> int:
    """Returns a descriptor of `size` bytes of memory, or of a file without a name."""
    descriptor = _anonymous()
    if descriptor is None:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _anonymous() -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.memfd_create("turnpoint-weights")  # not bound by the size of /dev/shm
    except OSError:  # a kernel, or what stands in for one, that has none
        return None


def _map(descriptor: int) -> Tensor:
    """Returns the bytes behind `descriptor`, [size], mapped as long as they are used."""
    return torch.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=torch.uint8)


def _view(content: Tensor, place: _Place) -> Tensor:
    size = place.shape.numel() * place.dtype.itemsize
    return content[place.offset : place.offset + size].view(place.dtype).view(place.shape)
