"""Who may import whom, read from the source: also imports inside functions and for types only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str) -> Iterator[str]:
    """Yields the modules that `source` imports; of `from a import b` both a and a.b, since b may be one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


MODULES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def breaches(
    modules: dict[str, str], *, of: Callable[[str], bool], allowed: Callable[[str], bool]
) -> list[str]:
    """Returns `importer -> imported` for each import that is not allowed."""
    return [
        f"{module} -> {imported}"
        for module, source in modules.items()
        if of(module)
        for imported in dict.fromkeys(imports(source))
        if not allowed(imported)
    ]


def folder(*names: str) -> Callable[[str], bool]:
    return lambda module: within(module, *(f"turnpoint.{name}" for name in names))


def not_folder(*names: str) -> Callable[[str], bool]:
    return lambda imported: not folder(*names)(imported)


def only_ours(*names: str) -> Callable[[str], bool]:
    """Whatever is foreign, and of ours only `names`; `from turnpoint import x` counts as turnpoint.x."""
    allowed = folder(*names)
    return lambda imported: not within(imported, "turnpoint") or imported == "turnpoint" or allowed(imported)


def losses_may(imported: str) -> bool:
    foreign = imported.partition(".")[0]
    if foreign == "turnpoint":
        return imported == "turnpoint" or folder("_lazy", "losses", "metrics", "types")(imported)
    return foreign in {"torch", "jaxtyping"} or foreign in sys.stdlib_module_names


FOUNDATION = ("_arrays", "errors", "metrics", "protocols", "types")
RULES: dict[str, tuple[Callable[[str], bool], Callable[[str], bool]]] = {
    "records and seams import nothing of ours but each other": (
        folder(*FOUNDATION),
        only_ours(*FOUNDATION),
    ),
    "losses import torch, types and metrics": (folder("losses"), losses_may),
    "branching, credit and teachers know neither engine nor training": (
        folder("branching", "credit", "teachers"),
        not_folder("engine", "training"),
    ),
    "the engine knows no environments, recipes or training": (
        folder("engine"),
        not_folder("environments", "config", "training"),
    ),
    "only training.ray_launch imports ray": (
        not_folder("training.ray_launch"),
        lambda imported: not within(imported, "ray"),
    ),
    "only engine.adapters import vllm and sglang": (
        not_folder("engine.adapters"),
        lambda imported: not within(imported, "vllm", "sglang"),
    ),
    "no relative imports": (lambda module: True, lambda imported: not imported.startswith(".")),
}


@pytest.mark.parametrize("rule", RULES)
def test_layers(rule: str) -> None:
    of, allowed = RULES[rule]
    assert breaches(MODULES, of=of, allowed=allowed) == []


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (
            "records and seams import nothing of ours but each other",
            "turnpoint.types",
            "import turnpoint.config",
        ),
        ("losses import torch, types and metrics", "turnpoint.losses.x", "from turnpoint import credit"),
        ("losses import torch, types and metrics", "turnpoint.losses.x", "import transformers"),
        (
            "branching, credit and teachers know neither engine nor training",
            "turnpoint.credit.x",
            "if TYPE_CHECKING:\n    from turnpoint.engine.core import Engine",
        ),
        (
            "the engine knows no environments, recipes or training",
            "turnpoint.engine",
            "def late():\n    from turnpoint.config import RunConfig",
        ),
        ("only training.ray_launch imports ray", "turnpoint.training.loop", "import ray.util"),
        ("only engine.adapters import vllm and sglang", "turnpoint.engine.runner", "import vllm as v"),
        ("no relative imports", "turnpoint.losses.x", "from . import y"),
        ("no relative imports", "turnpoint.losses.x", "from ..types import Task"),
    ],
)
def test_a_breach_of_each_rule_is_seen(rule: str, module: str, source: str) -> None:
    of, allowed = RULES[rule]
    assert breaches({module: source}, of=of, allowed=allowed)


def test_what_the_rules_allow_is_no_breach() -> None:
    modules = {
        "turnpoint.types": "import numpy\nfrom turnpoint import errors",
        "turnpoint.losses.x": "import math, torch\nfrom torch.nn import functional\nimport turnpoint.types",
        "turnpoint.training.ray_launch": "import ray",
        "turnpoint.engine.adapters.vllm": "import vllm",
        "turnpoint.rayon": "import rayon, sglangs",
        "turnpoint.credit.x": "from turnpoint.protocols import Engine\nimport turnpoint.training_notes",
    }
    for of, allowed in RULES.values():
        assert breaches(modules, of=of, allowed=allowed) == []


def test_the_whole_package_was_read() -> None:
    assert {"turnpoint", "turnpoint.types", "turnpoint.engine.adapters", "turnpoint.tasks.load"} <= set(
        MODULES
    )
