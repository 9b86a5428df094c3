"""Two runs that several tests compare with, trained once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import turnpoint as tp
from tests.commands.interrupted import EVERY, three_steps
from tests.recipe import write_tiny_recipe


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """Six steps that nothing interrupts, evaluated before, after three, and after."""
    recipe = write_tiny_recipe(tmp_path_factory.mktemp("whole") / "recipe.yaml", model=tiny_folder)
    return tp.train(tp.load_recipe(recipe, ["training.steps=6", *EVERY])).folder


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The first three of those steps, with a checkpoint after each."""
    recipe = write_tiny_recipe(tmp_path_factory.mktemp("stopped") / "recipe.yaml", model=tiny_folder)
    return three_steps(recipe, "training.save_every=1")


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of them to go on with."""
    return shutil.copytree(stopped, tmp_path / "run")
