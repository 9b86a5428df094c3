"""The matrix products of a model: which there are, how many floating-point operations, how many bytes.

A dense matrix meets every row of a batch. Of E experts' matrices each row meets k; R rows then meet
min(E, R k) of them, so that few rows read few experts and many read all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor, nn

from turnpoint.models.decoder import Decoder

Kind: TypeAlias = Literal["forward", "to_input", "to_weight"]
ProductClock: TypeAlias = Callable[[Tensor, int, Kind], float]
"""Seconds of one product of so many rows with a matrix [out, in], or of one of its two backward products."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrices:
    """Matrices of one shape."""

    weight: Tensor  # [out, in], one of them
    count: int
    per_row: int  # how many of them a row meets
    trained: bool

    def met(self, rows: int) -> tuple[int, int]:
        """Returns how many of the matrices `rows` rows meet, and how many rows each of those meets."""
        met = min(self.count, rows * self.per_row)
        return met, -(-rows * self.per_row // met)

    def flops(self, rows: int) -> int:
        """Returns the floating-point operations of `rows` rows."""
        return 2 * rows * self.per_row * self.weight.numel()

    def bytes(self, rows: int) -> int:
        """Returns the bytes of the matrices that `rows` rows meet."""
        return self.met(rows)[0] * self.weight.numel() * self.weight.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """All matrix products of a decoder but those of attention, which depend on the context."""

    layers: tuple[Matrices, ...]
    head: tuple[Matrices, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """`times` passes of `rows` rows through `matrices`."""

    matrices: Sequence[Matrices]
    rows: int
    times: float
    backward: bool = False  # also the products that the gradients take
    recomputed: bool = False  # the forward products a second time


MOST_ROWS = 1024  # of a product that is measured; beyond, the time is in proportion


def passes_of(
    matrices: Sequence[Matrices],
    rows: float,
    *,
    at_once: int,
    backward: bool = False,
    recomputed: bool = False,
) -> list[Pass]:
    """Returns how `rows` rows pass through `matrices`, `at_once` at a time; none when there are no rows."""
    together = min(at_once, MOST_ROWS, max(1, int(rows)))
    times = rows / together
    return (
        [Pass(matrices=matrices, rows=together, times=times, backward=backward, recomputed=recomputed)]
        if rows
        else []
    )


def products_of(decoder: Decoder) -> Products:
    """Returns the matrix products of one token through `decoder`."""
    grouped: dict[tuple[object, ...], list[tuple[Tensor, bool]]] = {}
    experts: dict[tuple[object, ...], int] = {}
    for module in matrix_modules(decoder):
        for weight in module.parameters(recurse=False):
            if weight.ndim < 2:
                continue
            one = weight[0] if weight.ndim == 3 else weight
            one = one.T if type(module).__name__ == "Conv1D" else one  # GPT-2 keeps [in, out]
            key = (*one.shape, weight.ndim, weight.requires_grad)
            grouped.setdefault(key, []).append((one.detach(), weight.requires_grad))
            experts[key] = weight.shape[0] if weight.ndim == 3 else 1
    active = getattr(decoder.config, "num_experts_per_tok", None) or 1
    layers = tuple(
        Matrices(
            weight=found[0][0],
            count=len(found) * experts[key],
            per_row=len(found) * min(active, experts[key]),
            trained=found[0][1],
        )
        for key, found in grouped.items()
    )
    head = decoder.head.weight
    trained = head.requires_grad
    return Products(
        layers=layers, head=(Matrices(weight=head.detach(), count=1, per_row=1, trained=trained),)
    )


def matrix_modules(decoder: Decoder) -> Iterator[nn.Module]:
    """Yields the modules that multiply by matrices of their own, the output head left out.

    Embeddings are looked up, and are none of them.
    """
    for module in decoder.backbone.modules():
        if module is decoder.head or isinstance(module, nn.Embedding):
            continue
        if any(weight.ndim in (2, 3) for weight in module.parameters(recurse=False)):
            yield module


def arithmetic_seconds(passes: Sequence[Pass], clock: ProductClock) -> float:
    """Returns how long the matrix products of `passes` take, one after the other and nothing between them."""
    return sum(it.times * _seconds(matrices, it, clock) for it in passes for matrices in it.matrices)


def _seconds(matrices: Matrices, which: Pass, clock: ProductClock) -> float:
    met, rows = matrices.met(which.rows)
    each = (2 if which.recomputed else 1) * clock(matrices.weight, rows, "forward")
    if which.backward:
        each += clock(matrices.weight, rows, "to_input")
        each += clock(matrices.weight, rows, "to_weight") if matrices.trained else 0.0
    return met * each


def weight_bytes(passes: Sequence[Pass]) -> float:
    """Returns the bytes of weights that `passes` read at least: once a pass, and once more for gradients."""
    return sum(
        it.times * (2 if it.backward else 1) * matrices.bytes(it.rows)
        for it in passes
        for matrices in it.matrices
    )
