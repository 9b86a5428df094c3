"""Keeps docs/recipe.md the keys that recipes really have: `--write` renews it, without it a difference fails.

Everything comes from src/turnpoint/config: names, kinds and defaults from the sections, meanings from the
docstrings below the keys.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from turnpoint.config import DraftConfig, RunConfig, SftConfig

PAGE = Path(__file__).parent.parent / "docs" / "recipe.md"
HEAD = """# Recipes: every key

A recipe is a YAML file; `turnpoint train RECIPE KEY=VALUE ...` changes keys by their dotted names, for
example `optimizer.learning_rate=1e-5` or `evaluation=null`. A key that is not here is refused, with the
nearest name. Sections of several kinds are told apart by `kind`; a section that is `null` is off, and
naming one of its keys switches it on. The resolved recipe is saved in the run folder. This page is made
from the code (`python scripts/recipe_keys.py --write`).
"""
Section = type[BaseModel]
_NOTHING: Mapping[str, FieldInfo] = {}


def meanings(section: Section) -> dict[str, str]:
    """Returns the docstring below each key of `section`, those of its bases too."""
    parents = [it for it in section.__bases__ if issubclass(it, BaseModel) and it is not BaseModel]
    found = {key: text for parent in parents for key, text in meanings(parent).items()}
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    for key, text in zip(body.body, body.body[1:], strict=False):
        match key, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.split())
            case _:
                pass
    return found


def sections(annotation: Any) -> list[Section]:
    """Returns the sections that a key can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in sections(part)]


def type_name(annotation: Any) -> str:
    """Returns what a key takes, in words."""
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(part) for part in get_args(annotation))
    if origin is tuple:
        return "list"
    if origin is not None and origin is not dict:
        return type_name(get_args(annotation)[0])
    named = {int: "integer", float: "number", str: "text", Path: "path", bool: "yes or no"}
    return named.get(annotation, "null" if annotation is type(None) else "mapping")


def default(field: FieldInfo) -> str:
    """Returns the default as YAML would say it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    assert value is not PydanticUndefined
    match value:
        case None | bool():
            text = {None: "null", True: "true", False: "false"}[value]
        case tuple():
            text = str(list(cast("tuple[object, ...]", value)))
        case str():
            text = repr(value) if not value or "\n" in value else value
        case _:
            text = str(value)
    return f"`{text}`"


def table(section: Section) -> Iterator[str]:
    """Yields the rows of a section's own keys, without those that are sections themselves."""
    texts = meanings(section)
    rows = {
        name: field
        for name, field in section.model_fields.items()
        if name != "kind" and not sections(field.annotation)
    }
    if rows:
        yield "| key | takes | default | |"
        yield "|---|---|---|---|"
    for name, field in rows.items():
        text = texts.get(name, "").replace("|", "\\|")
        yield f"| `{name}` | {type_name(field.annotation)} | {default(field)} | {text} |"


def chapter(path: str, choices: list[Section], off: bool) -> Iterator[str]:
    """Yields everything about the section at `path`."""
    for section in choices:
        kind = section.model_fields.get("kind")
        named = f", kind `{get_args(kind.annotation)[0]}`" if kind else ""
        standard = " (the default)" if kind and not kind.is_required() and not off else ""
        null = " (`null`, off, by default)" if off else ""
        yield f"\n### `{path}`{named}{standard}{null}\n"
        yield " ".join(inspect.getdoc(section).split()) + "\n"  # type: ignore[union-attr]
        yield from table(section)
    for section in choices:
        yield from inner(section, f"{path}.")


def inner(section: Section, prefix: str = "", known: Mapping[str, FieldInfo] = _NOTHING) -> Iterator[str]:
    """Yields the chapters of the sections inside `section`, without those told already."""
    for name, field in section.model_fields.items():
        told = name in known and known[name].annotation == field.annotation
        if (found := sections(field.annotation)) and not told:
            off = not field.is_required() and field.get_default(call_default_factory=True) is None
            yield from chapter(prefix + name, found, off)


def page() -> str:
    """Returns the whole page."""
    lines = [HEAD]
    for title, root in (
        ("turnpoint train", RunConfig),
        ("turnpoint sft", SftConfig),
        ("turnpoint draft", DraftConfig),
    ):
        known = _NOTHING if root is RunConfig else RunConfig.model_fields
        lines += [f"\n## `{title}`\n", *table(root), *inner(root, known=known)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes or compares the page; returns the exit status."""
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE} is not what the recipes are; run: python scripts/recipe_keys.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
