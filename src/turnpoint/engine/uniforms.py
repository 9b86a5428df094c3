"""Uniform numbers as a function of (seed, request, position, purpose): no state, no order.

The generator is the counter-based Philox 4x64 (Salmon et al. 2011). Its key is the seed and a hash of the
request's id; its counter is the position and the purpose. So a draw depends on nothing that happened
before it or beside it.
"""

from __future__ import annotations

import enum
import hashlib

import numpy as np
import numpy.typing as npt

_BLOCK = 64  # positions drawn at once; a multiple of the 4 numbers that one counter gives
_MASK64 = (1 << 64) - 1


class Purpose(enum.IntEnum):
    """What a draw is for; each purpose has its own stream."""

    SAMPLE = 0  # the token at a position
    ROUND = 1  # drafts and coins of a round of speculation


class Uniforms:
    """The draws of one request.

    >>> draws = Uniforms(seed=0, request_id="a")
    >>> draws.at(5) == Uniforms(seed=0, request_id="a").at(5) != draws.at(6)
    True
    """

    def __init__(self, *, seed: int, request_id: str, purpose: Purpose = Purpose.SAMPLE) -> None:
        digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._key = np.array([seed & _MASK64, int.from_bytes(digest, "little")], dtype=np.uint64)
        self._purpose = purpose
        self._block = -1
        self._draws: npt.NDArray[np.float64] = np.empty(0)

    def at(self, position: int) -> float:
        """Returns the draw of a position in the sequence, in [0, 1), a multiple of 2^-53."""
        block, offset = divmod(position, _BLOCK)
        if block != self._block:
            counter = np.array([block * (_BLOCK // 4), self._purpose, 0, 0], dtype=np.uint64)
            bits = np.random.Philox(key=self._key, counter=counter).random_raw(_BLOCK)
            self._block, self._draws = block, _unit(bits)
        return float(self._draws[offset])

    def of_round(self, start: int, count: int) -> npt.NDArray[np.float64]:
        """Returns `count` draws that belong to the round of speculation that starts at a position."""
        counter = np.array([0, Purpose.ROUND, start, 0], dtype=np.uint64)
        return _unit(np.random.Philox(key=self._key, counter=counter).random_raw(count))


def _unit(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Returns numbers in [0, 1), multiples of 2^-53."""
    return np.ldexp((bits >> np.uint64(11)).astype(np.float64), -53)
