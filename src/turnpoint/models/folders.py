"""Folders that appear whole or not at all, and where turnpoint keeps what it makes once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Returns where converted models are kept: $TURNPOINT_CACHE, else ~/.cache/turnpoint."""
    given = os.environ.get("TURNPOINT_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "turnpoint"


@contextmanager
def staged(final: Path, *, replace: bool) -> Generator[Path]:
    """Yields an empty folder; what is in it at the end becomes `final`, on an error nothing does.

    The content is on disk before the folder gets its name, so a name never shows half a folder. Where
    `final` is already there, `replace` says who stays: the new one, or the old one (which another process
    that did the same work finished first). Raises OSError as the file system does.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    # Beside `final`, because a rename works only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        yield new
        _flush(new)
        if replace and final.exists():
            final.rename(Path(scratch) / "old")
        try:
            new.rename(final)
        except OSError:
            if replace or not final.is_dir():
                raise


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
