r"""Reads the shape of a cleaned answer: numbers and formulas, words, lists, sets, tuples, equations, ...

Computer algebra is kind: it reads `(2)(3)` as 5 and `[0,1)` and `(0,1]` may both become an empty set. So all
structure is read here, as text, and only single formulas are left for others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.verifiers.math.clean import clean, split_braced
from turnpoint.verifiers.math.numbers import number_word
from turnpoint.verifiers.math.units import split_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One value: a number or an expression, without its unit."""

    text: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Text that is compared as text, in lower case."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option of a multiple-choice question, and what the answer adds to its letter."""

    letter: str
    rest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A value with a name: x = 5, f(x) = 2x, m<ABC = 50."""

    name: str
    value: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """left (= | < | <=) right, where neither side is a mere name."""

    sign: str
    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Several values. `kind`: list (bare, unordered), set, union, "()", "[]", "[)", "(]"."""

    kind: str
    parts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Shape, ...], ...]


Shape: TypeAlias = Formula | Words | Choice | Named | Relation | Items | Matrix

_TEXT_ONLY = re.compile(r"(?:\\text\{([^{}]*)\})+[.]?")
_BARE_WORDS = re.compile(r"(?=.*[A-Za-z]{2})[A-Za-z][A-Za-z' -]*")
_CHOICE = re.compile(r"(?:\\text\{)?(?:\(([A-Ja-j])\)|([A-J])[.:)])\}?(?:\\text\{([^{}]*)\}|(.*))", re.DOTALL)
_TEXT_CHOICE = re.compile(r"\\text\{\(?([A-Ja-j])\)?[.:]?\}")
_CONJUNCTION = re.compile(r",?\\text\{,?(?:and|or),?\}|,? (?:and|or) |;", re.IGNORECASE)
_OR = re.compile(r"\\text\{,?or,?\}| or ", re.IGNORECASE)
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_ALIGNED = re.compile(
    r"\\begin\{(aligned|align|gathered|cases|split)\*?\}|\\end\{(aligned|align|gathered|cases|split)\*?\}"
)
_LETTER = r"(?:[A-Za-z]|\\[A-Za-z]+)"
_NAME = re.compile(
    rf"{_LETTER}(?:_\{{[^{{}}]*\}})?'*|[A-Z]{{2,3}}|\|[A-Z]{{2}}\||m?\\angle ?[A-Z]{{1,3}}"
    rf"|\\text\{{[^{{}}]*\}}|\\overline\{{[A-Z]{{2}}\}}"
    r"|[fghyFGHPETSVA](?:_\{[^{}]*\})?'*\([A-Za-z0-9,| ]*\)"
)
_VARIABLE = re.compile(r"(?:[a-z]|\\(?:theta|alpha|beta|lambda|phi))(?:_\{[^{}]*\})?")
_NOT_NAMES = re.compile(r"\\(?:pi|infty|emptyset|pm|cdot|frac|sqrt|degree)")
_COMPARISON = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_FLIPPED = {">": "<", r"\ge": r"\le", "<": "<", r"\le": r"\le"}
_BRACKETS = {"(": ")", "[": "]"}
_BRACKET = re.compile(r"\\[{}]|\\[A-Za-z]+|[()\[\]{}]")


def read(text: str) -> Shape:
    r"""Returns the shape of the cleaned answer `text`.

    >>> read("x=5")
    Named(name='x', value=Formula(text='5', unit=''))
    """
    text = clean(_ALIGNED.sub("", text)) if r"\begin{" in text and not _MATRIX.fullmatch(text) else text
    if r"\approx" in text:
        exact, _, rounded = text.partition(r"\approx")
        text = exact.strip() or rounded.strip()
    if (words := _words(text)) is not None:
        return words
    if (match := _CHOICE.fullmatch(text)) and "," not in text[:3]:
        letter = (match.group(1) or match.group(2)).upper()
        return Choice(letter=letter, rest=(match.group(3) or match.group(4) or "").strip())
    if match := _MATRIX.fullmatch(text):
        return _matrix(match.group(2))
    return (
        _list(text)
        or _union(text)
        or _inequality(text)
        or _equation(text)
        or _bracketed(text)
        or _value(text)
    )


def split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """Returns the parts of `text` between separators that are outside all brackets."""
    parts: list[str] = []
    depth, at, start = 0, 0, 0
    while at < len(text):
        if depth == 0 and (found := separator.match(text, at)) and found.end() > at:
            parts.append(text[start:at])
            start = at = found.end()
            continue
        token = _BRACKET.match(text, at)
        if token:
            depth += 1 if token.group() in (r"\{", "(", "[", "{") else 0
            depth -= 1 if token.group() in (r"\}", ")", "]", "}") else 0
        at = token.end() if token else at + 1
    return [part.strip() for part in [*parts, text[start:]]]


_COMMA = re.compile(r",")
_EQUALS = re.compile(r"=")
_CUP = re.compile(r"\\cup(?![A-Za-z]) ?")
_AMPERSAND = re.compile(r"&")
_ROW_END = re.compile(r"\\\\")
_IN = re.compile(r"\\in(?![A-Za-z]) ?")


def _words(text: str) -> Shape | None:
    if match := _TEXT_CHOICE.fullmatch(text):
        return Choice(letter=match.group(1).upper())
    if _TEXT_ONLY.fullmatch(text):
        content = " ".join(re.findall(r"\\text\{([^{}]*)\}", text)).strip().rstrip(".").lower()
    elif _BARE_WORDS.fullmatch(text) and (
        len(text) > 3 or text.lower() in ("yes", "no", "odd", "one", "two", "six", "ten")
    ):
        content = text.strip().lower()
    else:
        return None
    digits = number_word(content)
    return Words(text=" ".join(content.split())) if digits is None else Formula(text=digits)


def _list(text: str) -> Shape | None:
    parts = [part for piece in split_top(text, _CONJUNCTION) for part in split_top(piece, _COMMA)]
    parts = [part for part in parts if part]
    if len(parts) > 1:
        shapes = [read(part) for part in parts]
        if _OR.search(text) and all(_is_interval(shape) for shape in shapes):
            return Items(kind="union", parts=tuple(shapes))
        first = shapes[0]
        if isinstance(first, Named) and not any(isinstance(shape, Named) for shape in shapes[1:]):
            return Named(name=first.name, value=Items(kind="list", parts=(first.value, *shapes[1:])))
        return Items(kind="list", parts=tuple(shapes))
    if text.count(r"\pm") == 1 and r"\mp" not in text and not split_top(text, _EQUALS)[1:]:
        signs = [clean(text.replace(r"\pm", sign)).removeprefix("+") for sign in "+-"]
        return Items(kind="list", parts=tuple(read(sign) for sign in signs))
    return None


def _is_interval(shape: Shape) -> bool:
    return isinstance(shape, Items) and shape.kind in ("()", "[]", "[)", "(]")


def _union(text: str) -> Shape | None:
    member = split_top(text, _IN)
    if len(member) == 2 and _VARIABLE.fullmatch(member[0]):
        return read(member[1])
    parts = split_top(text, _CUP)
    return Items(kind="union", parts=tuple(read(part) for part in parts)) if len(parts) > 1 else None


def _inequality(text: str) -> Shape | None:
    sides = split_top(text, _COMPARISON)
    signs: list[str] = _COMPARISON.findall(text)
    if len(sides) - 1 != len(signs) or not 1 <= len(signs) <= 2 or not all(sides):
        return None
    flipped = signs[0] in (">", r"\ge")
    if any((sign in (">", r"\ge")) != flipped for sign in signs):
        return None
    sides, signs = (sides[::-1], signs[::-1]) if flipped else (sides, signs)
    signs = [_FLIPPED[sign] for sign in signs]
    if len(signs) == 1 and _VARIABLE.fullmatch(sides[0]):
        return _interval(r"-\infty", "<", sides[1], signs[0])
    if len(signs) == 1 and _VARIABLE.fullmatch(sides[1]):
        return _interval(sides[0], signs[0], r"\infty", "<")
    if len(signs) == 2 and _VARIABLE.fullmatch(sides[1]):
        return _interval(sides[0], signs[0], sides[2], signs[1])
    return Relation(sign=signs[0], left=sides[0], right=sides[1]) if len(signs) == 1 else None


def _interval(low: str, low_sign: str, high: str, high_sign: str) -> Items:
    kind = ("(" if low_sign == "<" else "[") + (")" if high_sign == "<" else "]")
    return Items(kind=kind, parts=(read(low), read(high)))


def _equation(text: str) -> Shape | None:
    sides = split_top(text, _EQUALS)
    if len(sides) < 2 or not all(sides):
        return None
    if _NAME.fullmatch(sides[0]) and not _NOT_NAMES.match(sides[0]):
        return Named(name=sides[0], value=read(sides[-1])) if len(sides) == 2 else _chain(sides)
    if _NAME.fullmatch(sides[-1]) and len(sides) == 2 and not _NOT_NAMES.match(sides[-1]):
        return Named(name=sides[-1], value=read(sides[0]))
    return Relation(sign="=", left=sides[0], right=sides[1]) if len(sides) == 2 else None


def _chain(sides: list[str]) -> Named:
    """x = 2 + 3 = 5: the value is the last side; the others are kept to be checked against it."""
    return Named(name=sides[0], value=Items(kind="chain", parts=tuple(read(side) for side in sides[1:])))


def _bracketed(text: str) -> Shape | None:
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = text[2:-2].strip()
        if not inner:
            return Words(text="empty set")
        return Items(kind="set", parts=tuple(read(part) for part in split_top(inner, _COMMA)))
    if text[:1] in _BRACKETS and text[-1:] in (")", "]"):
        parts = split_top(text[1:-1], _COMMA)
        if len(parts) > 1 and all(parts):
            return Items(kind=text[0] + text[-1], parts=tuple(read(part) for part in parts))
    return None


def _matrix(body: str) -> Matrix:
    rows = [row for row in split_top(body, _ROW_END) if row]
    return Matrix(rows=tuple(tuple(read(clean(cell)) for cell in split_top(row, _AMPERSAND)) for row in rows))


def _value(text: str) -> Shape:
    if text == r"\emptyset":
        return Words(text="empty set")
    body, unit = split_unit(text)
    return Formula(text=clean(body).removeprefix("+"), unit=unit)


def is_closed(text: str) -> bool:
    r"""Returns whether the braces of `text` are balanced."""
    return split_braced("{" + text + "}", 0) == len(text) + 2
