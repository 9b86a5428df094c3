"""Compact forms of what a page carries: compressed text in base64, token numbers in planes, 8-bit floats.

Base64 knows no `<`, no quote and no control character, so that no text of a run can end a script or break
the page. A quantity is kept as the signed square root of its share of the largest: fine near zero, where most
log-probabilities are, and coarse (about 2 %) at the ends.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]

NO_VALUE = 255  # NaN, infinite, or not measured
_ZERO = 127  # codes 0 to 254 stand for -largest to largest


def pack(content: bytes) -> str:
    """Returns `content` compressed (zlib) and in base64; the same bytes give the same text."""
    return base64.b64encode(zlib.compress(content, 6)).decode("ascii")


def pack_json(value: Any) -> str:
    """Returns `value` as compressed ASCII JSON; lone surrogates survive as their escapes, NaN is refused."""
    return pack(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Returns ASCII JSON without blanks; raises ValueError for NaN and infinities."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def planes(numbers: npt.NDArray[np.int64]) -> bytes:
    """Returns [n] numbers below 2^24 as three planes of n bytes, lowest first: zeros compress to nothing."""
    return b"".join(((numbers >> shift) & 255).astype(np.uint8).tobytes() for shift in (0, 8, 16))


def largest(values: npt.NDArray[np.float64]) -> float:
    """Returns the largest finite magnitude, 0.0 where there is none."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def encode(values: npt.NDArray[np.float64], scale: float) -> Codes:
    """Returns [n] codes of `values`, whose largest magnitude is `scale`."""
    shares = np.clip(values / (scale or 1.0), -1.0, 1.0)
    known = np.isfinite(values)
    codes = np.full(values.shape, NO_VALUE, dtype=np.uint8)
    roots = np.sign(shares[known]) * np.sqrt(np.abs(shares[known]))
    codes[known] = np.rint(_ZERO + _ZERO * roots).astype(np.uint8)
    return codes


def decode(codes: Codes, scale: float) -> npt.NDArray[np.float64]:
    """Returns the values that the page shows for `codes`; NaN where there is none."""
    shares = (codes.astype(np.float64) - _ZERO) / _ZERO
    values = np.sign(shares) * shares**2 * scale
    values[codes == NO_VALUE] = np.nan
    return values


def framed(header: Mapping[str, Any], body: bytes) -> str:
    """Returns a JSON header, its length before it (4 bytes, little endian), and bytes behind it, packed."""
    head = json_bytes(header)
    return pack(len(head).to_bytes(4, "little") + head + body)
