"""Lazy package faces: a public name loads its module on first use, so that importing stays light."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a module's `__getattr__` and `__dir__`.

    They find each of `names` in its submodule of `package`, and list the names before anything is loaded.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return load, listed
