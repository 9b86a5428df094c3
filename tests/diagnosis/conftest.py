"""A tiny recipe, and the command as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipe import write_tiny_recipe
from tests.tiny import save_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> Path:
    return write_tiny_recipe(tmp_path / "recipe.yaml", model=tiny_folder)
