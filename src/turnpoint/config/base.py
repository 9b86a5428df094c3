"""What all sections of a recipe share: frozen, without unknown keys, numbers that are numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_yes_or_no(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{value} is YAML for yes or no; write a number")
    return value


def _can_name_a_file(value: Any) -> Any:
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"{value!r} holds a character that no file name can")
    return value


Number = BeforeValidator(_no_yes_or_no)
_Place = BeforeValidator(_can_name_a_file)
_COUNTABLE = 2**63 - 1  # for the libraries below

PositiveInt: TypeAlias = Annotated[int, Number, Field(gt=0, le=_COUNTABLE)]
NonNegativeInt: TypeAlias = Annotated[int, Number, Field(ge=0)]
PositiveFloat: TypeAlias = Annotated[float, Number, Field(gt=0)]
FilePath: TypeAlias = Annotated[Path, _Place]
Name: TypeAlias = Annotated[str, _Place]  # of a file or of something else


class Recipe(BaseModel):
    """Base of all sections: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def kind_or(default: str) -> Callable[[Any], Any]:
    """Returns what tells sections of several kinds apart; one that names no kind is of kind `default`."""

    def kind(value: Any) -> Any:
        if isinstance(value, Mapping):
            return cast(Mapping[str, Any], value).get("kind", default)
        return getattr(value, "kind", default)

    return kind
