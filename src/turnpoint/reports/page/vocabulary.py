"""Each distinct token of a page once: its id and its text."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt

from turnpoint.reports.page.parts import token_parts
from turnpoint.types import TokenIds


@final
class Vocabulary:
    """Numbers token ids in the order in which they first come, so that common ones have small numbers."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by id

    def numbers(self, token_ids: TokenIds) -> npt.NDArray[np.int64]:
        """Returns the [n] numbers of `token_ids`, new ones for ids not seen before."""
        distinct, first, places = np.unique(token_ids, return_index=True, return_inverse=True)
        for token in distinct[np.argsort(first)].tolist():
            self._numbers.setdefault(token, len(self._numbers))
        return np.array([self._numbers[token] for token in distinct.tolist()], dtype=np.int64)[places]

    def record(self, tokenizer: Any | None) -> dict[str, Any]:
        """Returns ids and texts in the order of their numbers, and the bytes of those that are no whole text.

        Without a tokenizer texts are None, and no bytes are known. Bytes are in hex, by number.
        """
        ids = list(self._numbers)
        texts = None if tokenizer is None else token_texts(tokenizer, ids)
        parts = {} if tokenizer is None or texts is None else token_parts(tokenizer, ids, texts)
        return {"ids": ids, "texts": texts, "parts": parts}


def token_texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
    """Returns what each token adds to a text, special tokens by name.

    Some decoders drop the blank before the first token, so each is decoded behind another one. A part of a
    character that several tokens spell is U+FFFD; an id that the tokenizer does not know is "".
    """
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
    before = _decoded(tokenizer, anchor)

    def text(token: int) -> str:
        whole = _decoded(tokenizer, [*anchor, token])
        return whole[len(before) :] if whole.startswith(before) else _decoded(tokenizer, [token])

    return [text(token) for token in token_ids]


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
