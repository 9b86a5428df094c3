"""JSON lines as runs write them: a torn end is told from damage, and damage is named by line and field.

A crash can tear only the last line: what follows the last newline and begins as an object does (or is
zeros, as some file systems leave) is torn, and left out. Everything else that is no record is an error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from turnpoint.errors import RunFolderError

T = TypeVar("T")

_WORDS = ("nan", "inf", "-inf")  # of numbers that JSON lacks
_SHOWN = 60  # characters of a value


class Record(BaseModel):
    """Base of what is read from a line: nothing is converted, fields that are not known are left alone."""

    model_config = ConfigDict(strict=True, frozen=True)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in _WORDS else value


Number: TypeAlias = Annotated[float, BeforeValidator(_number)]  # also NaN and infinities, and their words
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
Step: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]


def read_records(
    path: Path, make: Callable[[Any], T], *, what: str, torn: Callable[[str], None]
) -> Iterator[tuple[int, T]]:
    """Yields (line number, record) of a JSON-lines file; a torn last line is skipped, and `torn` told so.

    `make` turns JSON into a record and raises ValueError where it is none. That, and what is no JSON, becomes
    RunFolderError with file, line, field and value; `what` names what the line should be. Raises OSError.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if _is_torn(line):
                torn(f"{path}, line {number}, the last, is torn; skipped")
                return
            yield number, parse(line, make, where=f"{path}, line {number} is no {what}")


def silently(_: str) -> None:
    """For readers to whom a torn line is no news."""


def parse(text: bytes, make: Callable[[Any], T], *, where: str) -> T:
    """Returns what `make` makes of JSON; raises RunFolderError in one line that begins with `where`."""
    try:
        return make(json.loads(text.decode("utf-8-sig")))
    except ValidationError as error:
        raise RunFolderError(f"{where}: {described(error)}") from error
    except json.JSONDecodeError as error:
        raise RunFolderError(
            f"{where}: not JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
        ) from error
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{where}: not JSON: {error}") from error
    except RecursionError as error:
        raise RunFolderError(f"{where}: it is nested too deeply") from error
    except ValueError as error:
        raise RunFolderError(f"{where}: {error}") from error


def described(error: ValidationError) -> str:
    """Returns the first thing that is wrong: the field as jq writes it, its value, what it should be."""
    first = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]) or "."
    if first["type"] == "missing":
        return f"{field} is missing"
    objects = first["type"] in ("dict_type", "model_type", "dataclass_type")
    message = "should be an object" if objects else first["msg"].removeprefix("Input ")
    return f"{field} = {_short(first['input'])}: {message.removeprefix('Value error, ')}"


@contextlib.contextmanager
def within(place: str) -> Generator[None]:
    """Says of every ValueError where in the line it is."""
    try:
        yield
    except ValueError as error:
        joint = "" if str(error).startswith(".") else ": "
        raise ValueError(f"{place}{joint}{error}") from error


def _is_torn(line: bytes) -> bool:
    return not line.endswith(b"\n") and line.lstrip(b"\0")[:1] in (b"", b"{")


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def an_object(value: Any) -> dict[str, Any]:
    """Returns a JSON object as it is; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return cast(dict[str, Any], value)
