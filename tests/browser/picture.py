"""Takes the picture of the guide: python -m tests.browser.picture PAGE OUT.png [#step=3&group=3/5]."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser.chromium import chromium


def main(page: Path, out: Path, fragment: str = "") -> None:
    """Writes what a window of 1400 x 1180 pixels shows of `page`, scrolled to the open group."""
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as browser:
        browser.resize(1400, 1180)
        browser.scheme("light")
        browser.open(page, fragment)
        browser.until("return document.querySelectorAll('#group .t').length")
        browser.run("document.getElementById('curves').scrollIntoView()")
        browser.picture(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
