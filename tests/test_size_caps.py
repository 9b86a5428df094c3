"""Files and functions stay short enough to be read in one go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path for top in ("src", "tests", "benchmarks", "scripts") for path in (ROOT / top).rglob("*.py")
)
FILE_CAP = 500
FUNCTION_CAP = 60


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Yields where each function is and how many lines it has, docstring included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{node.lineno}: {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def too_long(sizes: dict[str, int], cap: int) -> str:
    """Returns what is over `cap`, longest first; empty when nothing is."""
    over = sorted(((lines, name) for name, lines in sizes.items() if lines > cap), reverse=True)
    return "\n".join(f"{lines:5} lines  {name}" for lines, name in over)


def test_files_are_short() -> None:
    files = [*FILES, *(ROOT / "src").rglob("*.js")]
    sizes = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files}
    assert len(sizes) > 20
    assert too_long(sizes, FILE_CAP) == "", f"files over {FILE_CAP} lines"


def test_functions_are_short() -> None:
    sizes = {
        f"{path.relative_to(ROOT)}:{name}": lines
        for path in FILES
        for name, lines in functions(path.read_text("utf-8"))
    }
    assert len(sizes) > 100
    assert too_long(sizes, FUNCTION_CAP) == "", f"functions over {FUNCTION_CAP} lines"


def test_a_long_function_is_seen_wherever_it_is() -> None:
    body = "\n".join(["        x = 1"] * 60)
    source = f"class A:\n    async def long(self):\n{body}\n\n    def short(self): ...\n"
    assert dict(functions(source)) == {"2: long": 61, "64: short": 1}
    assert too_long({"a": 61, "b": 60, "c": 99}, 60) == "   99 lines  c\n   61 lines  a"
