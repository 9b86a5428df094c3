"""Every recipe that ships can be read and written, and says what it is for."""

from pathlib import Path

import pytest

from turnpoint.config import (
    DraftConfig,
    RunConfig,
    SftConfig,
    dump_recipe,
    load_draft_recipe,
    load_run_recipe,
)

RECIPES = sorted((Path(__file__).parent.parent / "recipes").rglob("*.yaml"))


def load(path: Path) -> RunConfig | SftConfig | DraftConfig:
    """Returns the recipe in `path`; those of draft heads alone have `data`."""
    return load_draft_recipe(path) if "\ndata:" in path.read_text("utf-8") else load_run_recipe(path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads_and_survives_being_written(path: Path, tmp_path: Path) -> None:
    recipe = load(path)
    (tmp_path / "resolved.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    assert load(tmp_path / "resolved.yaml") == recipe
    assert path.read_text(encoding="utf-8").startswith("# ")  # says what it is for


def test_names_are_unique() -> None:
    names = [load(path).name for path in RECIPES]
    assert len(set(names)) == len(names) > 4
