"""The bytes of tokens that hold a part of a character, so that a page can join them to the character."""

from __future__ import annotations

import re
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def token_parts(tokenizer: Any, token_ids: list[int], texts: list[str]) -> dict[int, str]:
    """Returns the bytes, in hex, of tokens that hold a part of a character, by their place in `token_ids`.

    Only tokens of vocabularies over bytes have them: by GPT-2's alphabet, or written `<0xE4>`.
    """
    found = {
        place: _incomplete(tokenizer.convert_ids_to_tokens(token))
        for place, (token, text) in enumerate(zip(token_ids, texts, strict=True))
        if _REPLACEMENT in text
    }
    return {place: content.hex() for place, content in found.items() if content}


def _incomplete(piece: str) -> bytes:
    """Returns the bytes that a vocabulary writes as `piece`; nothing when they are unknown or UTF-8."""
    if named := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece):
        content = bytes.fromhex(named[1])
    elif _BYTES.keys() >= set(piece):
        content = bytes(_BYTES[character] for character in piece)
    else:
        return b""
    try:
        content.decode()
    except UnicodeDecodeError:
        return content
    return b""


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's alphabet: a byte that prints stands for itself, the n-th other one is chr(256 + n)."""
    prints = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = (byte for byte in range(256) if byte not in prints)
    return {chr(byte): byte for byte in prints} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()
