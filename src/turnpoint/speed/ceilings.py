"""What the machine gives at best, measured: bytes a second from memory, seconds of a matrix product.

Memory is read (a sum) and copied in one array much larger than caches; the faster of the two counts. A
product is repeated on the same matrix, so that one which fits into a cache stays there: that is arithmetic,
without the wait for memory. Both run with the process's own threads, in the model's own type.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from turnpoint.diagnosis.room import Room
from turnpoint.speed.products import Kind

_ARRAY = 512 << 20  # bytes: beyond the last cache of what people own
_LITTLE = 16  # at most this part of the room for the array
_REPEATS = 3
_PRODUCT_SECONDS = 0.02  # for the repeats of one product
_MOST_REPEATS = 50


def measure_bandwidth(device: torch.device, room: Room | None, *, array: int = _ARRAY) -> float:
    """Returns bytes a second; `array`: bytes of what is read, less where there is little room."""
    free = _ARRAY if room is None else (room.capacity() - room.used()) // _LITTLE
    size = max(1 << 20, min(array, free))
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    half = len(source) // 2
    read = size / _best(source.sum, device)
    copied = 2 * half * 4 / _best(lambda: source[:half].copy_(source[half : 2 * half]), device)
    return max(read, copied)


def _best(work: Callable[[], object], device: torch.device) -> float:
    return min(_timed(work, device) for _ in range(_REPEATS))


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Waits for what a GPU still computes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class MeasuredProducts:
    """A `ProductClock` that measures; each shape once, until it is forgotten with the object."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], float] = {}

    @torch.inference_mode()
    def __call__(self, weight: Tensor, rows: int, kind: Kind) -> float:
        """Returns the seconds of one product; the best of a few."""
        key = (*weight.shape, weight.dtype, rows, kind)
        if key not in self._seconds:
            work = _product(weight, rows, kind)
            first = min(_timed(work, weight.device) for _ in range(2))  # the first one warms up
            repeats = min(_MOST_REPEATS, int(_PRODUCT_SECONDS / max(first, 1e-9)))
            self._seconds[key] = min([first, *(_timed(work, weight.device) for _ in range(repeats))])
        return self._seconds[key]


def _product(weight: Tensor, rows: int, kind: Kind) -> Callable[[], Tensor]:
    out, inner = weight.shape

    def drawn(width: int) -> Tensor:
        return torch.randn(rows, width, dtype=weight.dtype, device=weight.device)

    match kind:
        case "forward":
            entering = drawn(inner)
            return lambda: torch.nn.functional.linear(entering, weight)
        case "to_input":
            leaving = drawn(out)
            return lambda: leaving @ weight
        case "to_weight":
            entering, leaving = drawn(inner), drawn(out)
            return lambda: leaving.T @ entering
