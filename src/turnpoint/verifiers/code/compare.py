"""Whether a program's output is the expected one; runs outside the sandbox, on text and JSON values only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from turnpoint.types import Json

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3})?")


def same_output(expected: str, got: str, *, tolerance: float = 0.0) -> bool:
    """Returns whether both print the same tokens, line by line; outer blanks and empty lines do not count.

    Two numbers are the same token when they are equal as decimals or differ by at most `tolerance`, absolute
    or relative to the expected one.

    >>> same_output("1 2\\n3", "1  2 \\n3.0\\n"), same_output("1 2", "1\\n2"), same_output("YES", "yes")
    (True, False, False)
    >>> same_output("0.3333", "0.33333333", tolerance=1e-4)
    True
    """
    if expected.strip() == got.strip():
        return True
    lines, others = _lines(expected), _lines(got)
    return len(lines) == len(others) and all(
        len(line) == len(other)
        and all(_same_token(a, b, tolerance) for a, b in zip(line, other, strict=True))
        for line, other in zip(lines, others, strict=True)
    )


def _lines(text: str) -> list[list[str]]:
    return [tokens for line in text.split("\n") if (tokens := line.split())]


def _same_token(expected: str, got: str, tolerance: float) -> bool:
    if expected == got:
        return True
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(got)):
        return False
    return Decimal(expected) == Decimal(got) or (
        tolerance > 0 and _near(float(expected), float(got), tolerance, tolerance)
    )


def same_value(expected: Json, got: Json, *, tolerance: float = 0.0, absolute: float = 0.0) -> bool:
    """Returns whether two JSON values are equal as Python compares them (1 == 1.0 == True).

    Numbers may differ by `tolerance`, absolute or relative to the expected one, and by `absolute`. Lists and
    tuples are the same here, as in JSON.

    >>> same_value([1, 0.3], [1.0, 0.1 + 0.2], tolerance=1e-9), same_value(["1"], [1])
    (True, False)
    """
    if isinstance(expected, bool | int | float) and isinstance(got, bool | int | float):
        return expected == got or _near(expected, got, tolerance, max(tolerance, absolute))
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        pairs = zip(cast("list[Json]", expected), cast("list[Json]", got), strict=False)
        return len(expected) == len(got) and all(
            same_value(a, b, tolerance=tolerance, absolute=absolute) for a, b in pairs
        )
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        wanted, given = cast("Mapping[str, Any]", expected), cast("Mapping[str, Any]", got)
        return wanted.keys() == given.keys() and all(
            same_value(value, given[key], tolerance=tolerance, absolute=absolute)
            for key, value in wanted.items()
        )
    return expected == got


def _near(expected: float, got: float, relative: float, absolute: float) -> bool:
    try:
        difference, size = abs(expected - got), abs(expected)
        return math.isfinite(difference) and difference <= max(absolute, relative * size)
    except OverflowError:  # an integer beyond every float
        return False
