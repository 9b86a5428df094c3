"""Reads a page back as a browser does: blobs by name, tokens with their quantities."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from turnpoint.reports.page.blobs import decode

_BLOB = re.compile(r'<script type="text/plain" id="([\w-]+)">([A-Za-z0-9+/=]*)</script>')


def blobs(page: Path) -> dict[str, bytes]:
    """Returns the blobs of a page by name."""
    return {
        name: zlib.decompress(base64.b64decode(text))
        for name, text in _BLOB.findall(page.read_text(encoding="ascii"))
    }


def sizes(page: Path) -> dict[str, int]:
    """Returns how many characters each blob takes on the page."""
    return {name: len(text) for name, text in _BLOB.findall(page.read_text(encoding="ascii"))}


def overview(page: Path) -> dict[str, Any]:
    """Returns head, curves, rows and vocabulary."""
    return json.loads(blobs(page)["overview"])


def tokens(page: Path, row: int) -> tuple[list[int], list[dict[str, Any]]]:
    """Returns the prompt's ids, and per member its ids and quantities by name."""
    blob, ids = blobs(page)[f"tokens-{row}"], overview(page)["vocabulary"]["ids"]
    end = 4 + int.from_bytes(blob[:4], "little")
    header, body = json.loads(blob[4:end]), np.frombuffer(blob[end:], dtype=np.uint8)
    lengths = [sum(n for _, n in member["runs"]) for member in header["members"]]
    total = header["prompt"] + sum(lengths)
    planes = body[: 3 * total].reshape(3, total).astype(np.int64)
    numbers = planes[0] + (planes[1] << 8) + (planes[2] << 16)
    every = [ids[number] for number in numbers]
    members: list[dict[str, Any]] = []
    at, place = 3 * total, header["prompt"]
    for member, length in zip(header["members"], lengths, strict=True):
        found: dict[str, Any] = {"ids": every[place : place + length]}
        place += length
        for name in member["quantities"]:
            found[name] = decode(body[at : at + length], header["scales"][name])
            at += length
        members.append(found)
    assert at == len(body)
    return every[: header["prompt"]], members
