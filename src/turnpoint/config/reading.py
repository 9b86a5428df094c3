"""Reading and writing recipes: YAML, dotted overrides, one line for everything that is wrong."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import ValidationError

from turnpoint.config import explain
from turnpoint.config.base import Recipe
from turnpoint.config.drafting import DraftConfig
from turnpoint.config.recipes import RunConfig, SftConfig
from turnpoint.errors import RecipeError

_R = TypeVar("_R", RunConfig, SftConfig, DraftConfig)

_KINDS: Mapping[str, type[Recipe]] = {"train": RunConfig, "sft": SftConfig, "draft": DraftConfig}


class _NoDuplicates(yaml.SafeLoader):
    """YAML in which a key may come once: PyYAML itself would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)


# PyYAML lets through what Python says of an impossible date, of thousands of digits, of nesting without end.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns the recipe in the YAML file `path`, changed by dotted `key=value` overrides.

    Raises RecipeError in one line for a missing or unreadable file, an unknown key or a bad value.
    """
    return _load(path, overrides, RunConfig)


def load_sft_recipe(path: str | Path, overrides: Sequence[str] = ()) -> SftConfig:
    """Returns the recipe of supervised fine-tuning in `path`; raises RecipeError as `load_recipe` does."""
    return _load(path, overrides, SftConfig)


def load_draft_recipe(path: str | Path, overrides: Sequence[str] = ()) -> DraftConfig:
    """Returns the recipe of draft heads in `path`; raises RecipeError as `load_recipe` does."""
    return _load(path, overrides, DraftConfig)


def load_run_recipe(path: str | Path) -> RunConfig | SftConfig:
    """Returns the resolved recipe that a run of `train` or `sft` left in its folder.

    A resolved recipe has all keys, and `solution` is one of `sft` alone. Raises RecipeError as `load_recipe`.
    """
    tree = _read(path)
    return _parse(tree, SftConfig) if "solution" in tree else _parse(tree, RunConfig)


def parse_recipe(tree: Mapping[str, Any]) -> RunConfig:
    """Returns `tree` as a recipe; raises RecipeError as `load_recipe` does."""
    return _parse(tree, RunConfig)


def parse_sft_recipe(tree: Mapping[str, Any]) -> SftConfig:
    """Returns `tree` as a recipe of supervised fine-tuning; raises RecipeError as `load_recipe` does."""
    return _parse(tree, SftConfig)


def parse_draft_recipe(tree: Mapping[str, Any]) -> DraftConfig:
    """Returns `tree` as a recipe of draft heads; raises RecipeError as `load_recipe` does."""
    return _parse(tree, DraftConfig)


def dump_recipe(config: Recipe) -> str:
    """Returns the resolved recipe as YAML; loading it gives an equal recipe."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def all_keys() -> list[str]:
    """Returns the dotted names of all keys that a recipe of `turnpoint train` can hold."""
    return explain.all_keys(RunConfig)


def _load(path: str | Path, overrides: Sequence[str], kind: type[_R]) -> _R:
    tree = _read(path)
    _check_kind(path, tree, kind)
    for override in overrides:
        _apply(tree, override, kind)
    return _parse(tree, kind)


def _check_switch(
    before: dict[str, Any], after: dict[str, Any], override: str, sections: Sequence[str], kind: type[Recipe]
) -> None:
    """Raises RecipeError when an override of a section's kind leaves numbers that were meant for another.

    That is so where both kinds have a key and mean different things by leaving it out.
    """
    old, new = _section(kind, before, sections), _section(kind, after, sections)
    if old is None or new is None or type(old) is type(new):
        return
    was, now = type(old).model_fields, type(new).model_fields
    shared = sorted(old.model_fields_set & now.keys() - {"kind"})
    where = ".".join(sections)
    meant = [f"{where}.{key} = {getattr(old, key)}" for key in shared if was[key].default != now[key].default]
    if meant:
        raise RecipeError(
            f"override {override!r}: {', '.join(meant)} in the recipe was meant for another kind; write "
            f"{where}={{kind: {override.rpartition('=')[2]}}} to begin the section anew"
        )


def _section(kind: type[Recipe], tree: Mapping[str, Any], sections: Sequence[str]) -> Recipe | None:
    """Returns a section of a whole recipe; None when that is not valid, which it will say itself."""
    try:
        part: Any = kind.model_validate(tree)
    except ValidationError:
        return None
    for name in sections:
        if part is not None:
            part = cast(dict[str, Any], part).get(name) if isinstance(part, dict) else getattr(part, name)
    return part


def _parse(tree: Mapping[str, Any], kind: type[_R]) -> _R:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise RecipeError("; ".join(explain.explain(error.errors(include_url=False), kind))) from error


def _read(path: str | Path) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such recipe or run folder") from error
    except IsADirectoryError as error:
        raise RecipeError(
            f"{path} is a folder, and this command takes a recipe; of a run: {path}/recipe.yaml, with "
            f"model.path=DIR of turnpoint export for what it learnt"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: {error}") from error
    try:
        tree = yaml.load(text, _NoDuplicates)
    except _NOT_YAML as error:
        raise RecipeError(f"recipe {path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, got {type(tree).__name__}")
    return cast(dict[str, Any], tree)


def _check_kind(path: str | Path, tree: Mapping[str, Any], kind: type[Recipe]) -> None:
    """Raises RecipeError for a recipe that has keys of another command and none that is only of its own."""
    keys = {name: its.model_fields.keys() & tree.keys() for name, its in _KINDS.items()}
    mine = next(name for name, its in _KINDS.items() if its is kind)
    for other in _KINDS:
        foreign = keys[other] - keys[mine]
        if foreign and not keys[mine] - keys[other]:
            raise RecipeError(
                f"recipe {path} is one of turnpoint {other}, not of turnpoint {mine}: it has "
                f"{', '.join(sorted(foreign))}"
            )


def _apply(tree: dict[str, Any], override: str, kind: type[Recipe]) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r}: expected key=value, for example training.steps=20")
    try:
        value = yaml.safe_load(text)
    except _NOT_YAML as error:
        raise RecipeError(f"override {override!r}: {text!r} is not a value") from error
    before, node = copy.deepcopy(tree), tree
    *sections, last = key.split(".")
    for section in sections:
        if node.get(section) is None:  # also `section: null`, which switches an optional one off
            node[section] = {}
        inner = node[section]
        if not isinstance(inner, dict):
            raise RecipeError(f"override {override!r}: {section!r} holds a value, not a section")
        node = cast(dict[str, Any], inner)
    node[last] = value
    if last == "kind" and sections:
        _check_switch(before, tree, override, sections, kind)
