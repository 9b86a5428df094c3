"""Checks the documentation against the tree: links lead somewhere, files that are named exist.

Looks at the Markdown files at the top and in docs/: relative links and their anchors, and every path that
begins with a folder of this repository, also in code blocks. Web addresses are not followed. Prints one
line per fault and exits with status 1 when there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w./-])(?:\.ci|benchmarks|docs|recipes|scripts|src|tests)/[\w./-]*[\w/]")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def faults(root: Path) -> Iterator[str]:
    """Yields one line per link or file, in the documentation under `root`, that is not there."""
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        text = page.read_text(encoding="utf-8")
        for target in _LINK.findall(_FENCE.sub("", text)):
            if not re.match(r"[a-z]+:", target) and not _leads_somewhere(page, target):
                yield f"{page.relative_to(root)}: the link {target} leads nowhere"
        for path in dict.fromkeys(_PATH.findall(text)):
            if not (root / path).exists():
                yield f"{page.relative_to(root)}: names {path}, which is not there"


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    if not anchor:
        return file.exists()
    return file.is_file() and anchor in _anchors(file.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    titles = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def main() -> int:
    """Prints all faults of this repository; returns the exit status."""
    found = list(faults(Path(__file__).resolve().parent.parent))
    for fault in found:
        print(fault)
    print(f"documentation: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
