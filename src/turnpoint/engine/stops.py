"""Stop strings: found as soon as the last of their characters is decoded, wherever token borders lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnpoint.types import TokenIds

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # how decoders show a character whose bytes are not all there
_MOST_PARTS = 4  # a character of UTF-8 has at most four bytes, so at most four tokens
_CONTEXT = 8  # tokens decoded again before the new ones, because a token's text can depend on the one before


class StopScanner:
    """Looks for `strings` in the text of a growing sequence; each token is decoded a few times at most."""

    def __init__(self, decode: Callable[[TokenIds], str], strings: Sequence[str]) -> None:
        self._decode = decode
        self._strings = strings
        self._reach = max((len(string) for string in strings), default=1) - 1
        self._tail = ""  # the last `_reach` characters of text that was searched
        self._anchor = 0  # decoding starts at this token,
        self._searched = 0  # of which this many characters are searched,
        self._read = 0  # from the tokens before this one

    def pass_over(self, ids: TokenIds) -> None:
        """Takes note of `ids` [n], which hold no stop string but may hold the beginning of one."""
        for count in range(
            max(1, len(ids) - _CONTEXT), len(ids) + 1
        ):  # as they came: a character may be open
            self.push(ids[:count])

    def push(self, ids: TokenIds) -> bool:
        """Returns whether a stop string is in the text of `ids`, all tokens so far (one more each time)."""
        if not self._strings:
            return False
        window = self._decode(ids[self._anchor :])
        recent = self._tail + window[self._searched :]
        if any(string in recent for string in self._strings):
            return True
        if window.endswith(_INCOMPLETE) and len(ids) - self._read < _MOST_PARTS:
            return False
        self._tail = recent[len(recent) - self._reach :] if self._reach < len(recent) else recent
        self._searched, self._read = len(window), len(ids)
        if len(ids) - self._anchor > 2 * _CONTEXT:
            self._anchor = len(ids) - _CONTEXT
            self._searched = len(self._decode(ids[self._anchor :]))
        return False


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    """Returns `text` up to where the first stop string begins; all of it when there is none."""
    found = [at for string in strings if (at := text.find(string)) >= 0]
    return text[: min(found)] if found else text
