"""Keeps the tree in README.md true: one line per file, taken from the first line of its docstring.

python scripts/readme_tree.py          # exits with status 1 when README.md is not up to date
python scripts/readme_tree.py --write  # brings it up to date
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_MARKED = re.compile(r"(<!-- tree -->\n```\n).*?(```\n<!-- /tree -->)", re.DOTALL)
_WIDTH = 22


def tree() -> str:
    """Returns the package's files, folder by folder, each with what it is for."""
    package = ROOT / "src" / "turnpoint"
    lines = ["src/turnpoint/", *_files(package)]
    for folder in sorted(path.parent for path in package.rglob("__init__.py") if path.parent != package):
        files = _files(folder)
        if files:
            lines += ["", f"{folder.relative_to(package)}/", *files]
    return "\n".join(lines) + "\n"


def _files(folder: Path) -> list[str]:
    return [
        f"    {path.name:<{_WIDTH}}{_purpose(path)}"
        for path in sorted(folder.glob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]


def _purpose(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.splitlines()[0].removesuffix(".") if docstring else ""


def main() -> int:
    """Checks or writes README.md; returns the exit status."""
    readme = ROOT / "README.md"
    before = readme.read_text(encoding="utf-8")
    after = _MARKED.sub(lambda match: match[1] + tree() + match[2], before)
    if "--write" in sys.argv[1:]:
        readme.write_text(after, encoding="utf-8")
    elif before != after or not _MARKED.search(before):
        print("README.md: its tree is not up to date; run python scripts/readme_tree.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
