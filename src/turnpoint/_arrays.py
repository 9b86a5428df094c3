"""Read-only numpy arrays for the records, and equality of what holds some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int32]  # [n]
Floats: TypeAlias = npt.NDArray[np.float32]  # [n]


def token_array(values: npt.ArrayLike) -> TokenIds:
    """Returns a read-only int32 copy of `values`, [n] token ids; raises ValueError unless 1-D integers."""
    given = np.asarray(values)
    if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
        raise ValueError(f"token ids must be 1-D integers, got {given.dtype} of shape {given.shape}")
    return frozen(given.astype(np.int32))


def float_array(values: npt.ArrayLike) -> Floats:
    """Returns a read-only float32 copy of `values`, [n]; raises ValueError unless 1-D."""
    given = np.asarray(values, dtype=np.float32)
    if given.ndim != 1:
        raise ValueError(f"expected a 1-D array, got shape {given.shape}")
    return frozen(given.copy())


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def same(left: object, right: object) -> bool:
    """Whether two values are equal: arrays, mappings and records by what is in them, NaN like any number."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        mine, other = cast(Mapping[Any, Any], left), cast(Mapping[Any, Any], right)
        return mine.keys() == other.keys() and all(same(mine[key], other[key]) for key in mine)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        array = cast(npt.NDArray[Any], left)
        return np.array_equal(array, cast(npt.NDArray[Any], right), equal_nan=array.dtype.kind == "f")
    return _same_values(cast(Any, left), right)


def _same_values(left: Any, right: object) -> bool:
    if is_dataclass(left) and type(left) is type(right):
        return all(same(getattr(left, it.name), getattr(right, it.name)) for it in fields(left))
    return bool(left == right)
