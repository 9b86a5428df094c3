r"""Reads exact rational numbers: integers, decimals, fractions, mixed and scientific notation.

Everything is exact: 0.3333 is 3333/10000 and not 1/3. A decimal is never an irrational number.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PLAIN = re.compile(_DECIMAL)
_QUOTIENT = re.compile(rf"\\frac\{{([+-]?{_DECIMAL})\}}\{{([+-]?{_DECIMAL})\}}|({_DECIMAL})/({_DECIMAL})")
_MIXED = re.compile(r"([0-9]+) ?(?:\\frac\{([0-9]+)\}\{([0-9]+)\}|(?<= )([0-9]+)/([0-9]+))")
_SCIENTIFIC = re.compile(rf"({_DECIMAL})(?:\\cdot ?10\^\{{([+-]?[0-9]+)\}}|[eE]([+-]?[0-9]+))")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar)\{([0-9]+)\}")
_LARGEST_EXPONENT = 1000

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def read_number(text: str) -> Fraction | None:
    r"""Returns the value of a cleaned answer that is a number, or None.

    >>> read_number(r"-2\frac{1}{2}"), read_number("1.5e3"), read_number("1 2")
    (Fraction(-5, 2), Fraction(1500, 1), None)
    """
    sign = -1 if text.startswith("-") else 1
    value = _unsigned(text.removeprefix("-") if sign < 0 else text.removeprefix("+"))
    return None if value is None else sign * value


def _unsigned(text: str) -> Fraction | None:
    if _PLAIN.fullmatch(text):
        return _decimal(text)
    if match := _QUOTIENT.fullmatch(text):
        above, below = (_decimal(part) for part in match.groups() if part is not None)
        return above / below if below else None
    if match := _MIXED.fullmatch(text):
        whole, above, below = (int(part) for part in match.groups() if part is not None)
        return whole + Fraction(above, below) if above < below else None
    if match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match.group(2) or match.group(3))
        return (
            _decimal(match.group(1)) * Fraction(10) ** exponent
            if abs(exponent) <= _LARGEST_EXPONENT
            else None
        )
    if match := _REPEATING.fullmatch(text):
        whole, fixed, period = match.groups()
        tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
        return _decimal(f"{whole or 0}.{fixed}") + tail
    return None


def _decimal(text: str) -> Fraction:
    sign = -1 if text.startswith("-") else 1
    whole, _, decimals = text.lstrip("+-").partition(".")
    return sign * Fraction(int(f"{whole}{decimals}"), 10 ** len(decimals))


def number_word(text: str) -> str | None:
    """Returns the digits of a number word from zero to ninety-nine, or None.

    >>> number_word("twenty-one")
    '21'
    """
    tens, _, ones = text.strip().lower().replace("-", " ").partition(" ")
    words = [*_ONES.split(), *_TENS.split()]
    values = dict(zip(words, [*range(20), *range(20, 100, 10)], strict=True))
    if tens not in values or (ones and not (values[tens] >= 20 and 1 <= values.get(ones, 0) <= 9)):
        return None
    return str(values[tens] + values.get(ones, 0))
