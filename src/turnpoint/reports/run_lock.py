"""One writer per run folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from turnpoint.errors import RunFolderError


@contextmanager
def locked(run: Path) -> Generator[None]:
    """Holds the lock of the run folder `run` while the block runs.

    Raises RunFolderError in one line, at once, while another process holds it, and when the file system
    refuses. The file stays behind; only the lock on it counts, and the operating system ends that with the
    process. Worker processes do not inherit it.
    """
    try:
        file = (run / "lock").open("a+", encoding="ascii")
    except OSError as error:
        raise RunFolderError(f"{run} cannot be locked: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip()
            raise RunFolderError(
                f"{run} is in use by another turnpoint{f', process {owner}' if owner else ''}; wait until it "
                f"ends, or stop it"
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"{run} cannot be locked: {error.strerror or error}; set output_dir to another file system"
            ) from error
        yield
