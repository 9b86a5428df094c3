"""Which of a rollout's tokens may be sampled anew: those that say something."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from turnpoint.types import TokenIds, token_array


class Candidates:
    """Tells tokens that may be forked from those that may not, by what each says on its own.

    Tokens that end a turn (`stop_ids`) and those without text (template and role tokens) never may; blank
    ones (`blanks`) and those of punctuation alone (`punctuation`) where that is asked. A part of a character
    counts as a letter.
    """

    def __init__(
        self,
        text: Callable[[TokenIds], str],
        *,
        stop_ids: frozenset[int],
        blanks: bool = False,
        punctuation: bool = True,
    ) -> None:
        def allows(token: int) -> bool:
            said = text(token_array([token]))
            if token in stop_ids or not said:
                return False
            if said.isspace():
                return blanks
            return punctuation or any(it.isalnum() or it == "\N{REPLACEMENT CHARACTER}" for it in said)

        self._allows = functools.lru_cache(maxsize=None)(allows)  # at most the vocabulary

    def mask(self, token_ids: TokenIds) -> npt.NDArray[np.bool_]:
        """Returns [n], true where a token may be forked."""
        return np.array([self._allows(token) for token in token_ids.tolist()], dtype=np.bool_)
