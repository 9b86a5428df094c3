"""Runs that stop before their end, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnpoint as tp

EVERY = ["evaluation.every=3"]


def three_steps(recipe: Path, *overrides: str) -> Path:
    return tp.train(tp.load_recipe(recipe, ["training.steps=3", *EVERY, *overrides])).folder


def files(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != "lock"
    }


class Killed(BaseException):
    """Nothing that any code here catches."""


def die_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Calls of `owner.name` raise `Killed` from the first on for which `when(*arguments)` is true."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            raise Killed
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
