"""What pydantic found wrong with a recipe, as one line each that names the key and the way out."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from turnpoint.losses.refused import REFUSED

Section = type[BaseModel]

_RENAMED = {"objective": "kind"}  # keys of earlier versions
_ONE_LAW = "the training law would differ from the sampled one; rollouts are drawn from the whole law"
_REFUSED = dict.fromkeys(("top_p", "top_k", "min_p"), _ONE_LAW)  # what people bring from elsewhere
_REFUSED_KINDS = {"distill.loss": REFUSED}  # reasons, by section


def explain(details: Iterable[ErrorDetails], root: Section) -> Iterator[str]:
    """Yields one line per finding about a recipe of type `root`."""
    for detail in details:
        yield " ".join(_line(detail, root).split())


def all_keys(root: Section, prefix: str = "") -> list[str]:
    """Returns the dotted names of all keys that a `root` can hold, of every kind, without repetition.

    NAME stands for what the recipe's author chooses.
    """
    keys: list[str] = []
    for name, info in root.model_fields.items():
        keys.append(prefix + name)
        chosen = "NAME." if _named(root, name) else ""
        for inner in _sections(info.annotation):
            keys.extend(all_keys(inner, f"{prefix}{name}.{chosen}"))
    return list(dict.fromkeys(keys))


def _line(detail: ErrorDetails, root: Section) -> str:
    names, kind = _locate(detail["loc"], root)
    where = ".".join(names)
    value = repr(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key{_way_out(names, kind, root)}"
        case "missing":
            return f"{where}: missing{_one_of(names, kind, root)}"
        case "union_tag_not_found":
            return f"{where}.kind: missing; it is one of {', '.join(_kinds(_at(names, root)))}"
        case "union_tag_invalid":
            tag = detail["input"]["kind"]
            reason = _REFUSED_KINDS.get(where, {}).get(str(tag))
            why = f" is refused: {reason}. In a recipe" if reason else ":"
            return f"{where}.kind = {tag!r}{why} it is one of {', '.join(_kinds(_at(names, root)))}"
        case "model_type" | "model_attributes_type":
            return f"{where} = {value}: expected keys and values"
        case "tuple_type":
            return f"{where} = {value}: expected a list"
        case "value_error":
            message = detail["msg"].removeprefix("Value error, ")
            return f"{where}: {message}" if where else message
        case _:
            return f"{where} = {value}: {detail['msg']}"


def _locate(location: Sequence[int | str], root: Section) -> tuple[list[str], str | None]:
    """Returns the names of a place, and the kind that pydantic chose on the way and put among them."""
    names: list[str] = []
    kind: str | None = None
    choices: list[Section] = [root]
    free = False  # whether the next name is one that the recipe's author chose
    for part in location:
        if free:
            names.append(str(part))
            free = False
        elif len(choices) > 1:
            kind = str(part)
            choices = [section for section in choices if _kinds([section]) == [kind]]
        else:
            names.append(str(part))
            free = any(_named(section, str(part)) for section in choices)
            choices = [inner for section in choices for inner in _inner(section, str(part))]
    return names, kind


def _at(names: Sequence[str], root: Section) -> list[Section]:
    """Returns the sections of every kind that can stand at a place."""
    choices: list[Section] = [root]
    free = False
    for name in names:
        if free:
            free = False
            continue
        free = any(_named(section, name) for section in choices)
        choices = [inner for section in choices for inner in _inner(section, name)]
    return choices


def _inner(section: Section, name: str) -> list[Section]:
    return _sections(section.model_fields[name].annotation) if name in section.model_fields else []


def _named(section: Section, name: str) -> bool:
    """Says whether a field holds sections by names that the recipe's author chooses."""
    field = section.model_fields.get(name)
    return field is not None and typing.get_origin(field.annotation) is dict and bool(_inner(section, name))


def _sections(annotation: Any) -> list[Section]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [section for part in getattr(annotation, "__args__", ()) for section in _sections(part)]


def _kinds(sections: Iterable[Section]) -> list[str]:
    return [str(section.model_fields["kind"].annotation.__args__[0]) for section in sections]  # type: ignore[union-attr]


def _one_of(names: Sequence[str], kind: str | None, root: Section) -> str:
    """Returns what can be written where something is missing, if that is a choice of few words."""
    *place, key = names
    here = [section for section in _at(place, root) if kind is None or _kinds([section]) == [kind]]
    words = [word for section in here if key in section.model_fields for word in _words(section, key)]
    return f"; it is one of {', '.join(words)}" if words else ""


def _words(section: Section, key: str) -> tuple[str, ...]:
    annotation = section.model_fields[key].annotation
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def _way_out(names: Sequence[str], kind: str | None, root: Section) -> str:
    *place, key = names
    if key in _REFUSED:
        return f" ({_REFUSED[key]})"
    here = _at(place, root)
    if any(_RENAMED.get(key) in section.model_fields for section in here):
        return f"; it is {'.'.join([*place, _RENAMED[key]])} now"
    owners = [section for section in here if key in section.model_fields]
    if owners:
        return f" of kind {kind}; it belongs to kind {' or '.join(_kinds(owners))}"
    own = {name: ".".join([*place, name]) for section in here for name in section.model_fields}
    everywhere: dict[str, str] = {}
    for path in sorted(all_keys(root), key=lambda path: path.count(".")):
        everywhere.setdefault(path.rpartition(".")[2], path)  # the outermost key of a name wins
    for known in (own, everywhere):
        near = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.6)
        if near:
            return f"; did you mean {known[near[0]]}?"
    return ""
