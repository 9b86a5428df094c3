"""Puts a page together: groups one by one, as they are read, then one file with everything in it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from turnpoint.errors import RunFolderError
from turnpoint.protocols import Advantage
from turnpoint.reports.page import group as pieces
from turnpoint.reports.page.blobs import pack_json
from turnpoint.reports.page.room import Room
from turnpoint.reports.page.vocabulary import Vocabulary
from turnpoint.reports.teacher_words import Said
from turnpoint.types import Group

ROOM = 36_000_000  # characters for groups; the rest of a page is far below 4 MB
MARK = b'<meta name="generator" content="turnpoint">'  # in template.html
_HERE = Path(__file__).parent
SCRIPTS = (
    "data.js",
    "text.js",
    "curves.js",
    "head.js",
    "search.js",
    "table.js",
    "tokens.js",
    "tree.js",
    "inspector.js",
    "page.js",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a written page holds."""

    path: Path
    size: int  # bytes
    groups: int
    rollouts: int
    notes: tuple[str, ...]  # what is not in it


@final
class PageBuilder:
    """Collects groups; `advantage` says what their tokens deserved."""

    def __init__(self, advantage: Advantage, *, room: int = ROOM) -> None:
        self._advantage = advantage
        self._vocabulary = Vocabulary()
        self._room = Room(room)
        self._rows: list[dict[str, Any]] = []
        self._rollouts = 0

    def add(self, group: Group, *, step: int, said: Said | None = None) -> None:
        """Adds a group of `step`, and what a teacher said of its tokens.

        The tokens may be let go later, when the page is full.
        """
        credits = {credit.segment: credit for credit in self._advantage.credit(group)}
        self._room.put(
            step=step,
            spread=pieces.spread(group),
            row=len(self._rows),
            texts=pieces.texts(group, credits, said),
            tokens=pieces.tokens(group, credits, said, self._vocabulary),
        )
        self._rows.append(pieces.row(group, step))
        self._rollouts += len(group.members)

    def write(
        self, out: Path, head: Mapping[str, Any], *, tokenizer: Any | None, notes: Sequence[str] = ()
    ) -> Built:
        """Writes the page to `out`, whole or not at all; raises RunFolderError when that cannot be.

        An earlier page is replaced, and nothing else (`check_place`).
        """
        check_place(out)
        texts, tokens = dict(self._room.kept("texts")), dict(self._room.kept("tokens"))
        said = (*notes, *_left_out(len(self._rows), texts=len(texts), tokens=len(tokens)))
        overview = {
            **head,
            "notes": said,
            "groups": self._rows,
            "vocabulary": self._vocabulary.record(tokenizer),
        }
        blobs = {"overview": pack_json(overview)}
        blobs |= {f"texts-{row}": blob for row, blob in texts.items()}
        blobs |= {f"tokens-{row}": blob for row, blob in tokens.items()}
        page = assemble(blobs)
        _replace(out, page)
        return Built(path=out, size=len(page), groups=len(self._rows), rollouts=self._rollouts, notes=said)


def assemble(blobs: Mapping[str, str]) -> bytes:
    """Returns the page as ASCII HTML around `blobs` (names and base64, nothing to escape)."""
    scripts = "\n".join((_HERE / name).read_text("utf-8") for name in SCRIPTS)
    data = "\n".join(f'<script type="text/plain" id="{name}">{blob}</script>' for name, blob in blobs.items())
    template = (_HERE / "template.html").read_text("utf-8")
    parts = {"{{style}}": (_HERE / "page.css").read_text("utf-8"), "{{data}}": data, "{{script}}": scripts}
    for mark, content in parts.items():
        before, _, after = template.partition(mark)
        template = before + content + after
    return template.encode("ascii")


def _left_out(groups: int, *, texts: int, tokens: int) -> list[str]:
    if tokens == groups:
        return []
    said = [
        f"the page holds the tokens of {tokens:,} of {groups:,} groups, those whose rewards differ most in "
        f"each step; rollouts.jsonl has them all"
    ]
    if texts < groups:
        said.append(f"the page holds the texts of {texts:,} of {groups:,} groups, chosen the same way")
    return said


def check_place(out: Path) -> None:
    """Raises RunFolderError when something stands at `out` that is no page of turnpoint."""
    try:
        if not out.exists() or (out.is_file() and MARK in out.read_bytes()[:1000]):
            return
    except OSError as error:
        raise RunFolderError(f"{out}: cannot write the page: {error.strerror or error}") from error
    raise RunFolderError(f"{out} exists and is no page of turnpoint; choose another place")


def _replace(out: Path, page: bytes) -> None:
    beside = out.with_name(f".{out.name}-partial")
    try:
        beside.write_bytes(page)
        beside.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)  # on a full disk, above all
        raise RunFolderError(f"{out}: cannot write the page: {error.strerror or error}") from error
