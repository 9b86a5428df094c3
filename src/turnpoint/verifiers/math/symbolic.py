"""Decides whether two formulas are equal; runs in a worker, where it may hang or grow.

math-verify reads the LaTeX into sympy. Its own comparison is not used: it rounds to six decimals (1/2^99
equals 1/2^98, sqrt(2) equals 1.414214) and calls equations without real solutions equal. Here constants must
agree to 4,000 digits; formulas, at random rational points to 50 digits and at one to 4,000.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse

from turnpoint.types import Json
from turnpoint.verifiers.math.clean import clean
from turnpoint.verifiers.math.compare import same
from turnpoint.verifiers.math.formula import Explicit, UnreadableFormula, explicit
from turnpoint.verifiers.math.shape import read

_DIGITS = 50
_MANY_DIGITS = 4000
_POINTS = 8
_AS_WRITTEN = LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(
        basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none"
    ),
)
_CONSTANTS_OF_GOLD = re.compile(r"[Cc]|[CcKk]_\{[0-9]\}")
_CONSTANTS_OF_ANSWER = re.compile(r"[A-DKck]|[A-DKck]_\{[0-9]\}")
_LITERAL_ONLY = re.compile(
    r"'|[0-9)]_|\\l?dots|\\cdots|:|\\ne(?![A-Za-z])|\\overline|\\text|\\mathbb|\\setminus|[fg]\(|\\pmod|\\bmod|\\equiv|\\angle|\\vec"
)


class UnreadableGold(Exception):  # noqa: N818 - reported as a verdict
    """The reference answer is no formula."""


def grader() -> Any:
    """Returns the function that a worker serves: (gold, answer), both cleaned -> what was decided.

    "same" | "different" | "unreadable gold". Warmed up, as the first parse takes a hundred times longer.
    """
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no timeout; the pool has
    logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)
    grade(r"\frac{x+1}{2}", r"\frac{x}{2}+\sqrt{2}")
    return grade


def grade(gold: str, answer: str) -> Json:
    """Returns the decision on two cleaned answers."""
    try:
        return "same" if same(read(gold), read(answer), Symbolic()) else "different"
    except UnreadableGold:
        return "unreadable gold"


class Symbolic:
    """An `Arithmetic` of formulas."""

    def equal(self, gold: str, answer: str) -> bool:
        if gold == answer:
            return True
        left, right = _read_gold(gold), _read(answer)
        if left is None or right is None:
            return False
        return _equal(left[0], right[0]) or _equal_up_to_constants(left, right)

    def proportion(self, gold: str, answer: str) -> int:
        left, right = _read_gold(gold), _read(answer)
        return 0 if left is None or right is None else _proportion(left[0], right[0])


def _read_gold(text: str) -> tuple[Any, Explicit] | None:
    formula = _read(text)
    if formula is None and not _LITERAL_ONLY.search(text):
        raise UnreadableGold(text)
    return formula


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[Any, Explicit] | None:
    try:
        formula = explicit(text)
    except UnreadableFormula:
        return None
    found = parse(f"${formula.latex}$", [_AS_WRITTEN], fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    if len(found) != 1 or not isinstance(found[0], sympy.Expr):
        return None
    symbols = {symbol.name: symbol for symbol in found[0].free_symbols}  # type: ignore[union-attr]
    if set(symbols) - {_symbol_name(code) for code in formula.variables}:
        return None
    unit = {s: sympy.I for n, s in symbols.items() if n == _symbol_name(_code(formula, "i"))}
    plain = {s: sympy.Symbol(n) for n, s in symbols.items() if s not in unit}
    value: Any = found[0].subs(unit | plain).doit()
    return (value, formula) if isinstance(value, sympy.Expr) and not value.has(sympy.nan, sympy.zoo) else None


def _symbol_name(code: str) -> str:
    return re.sub(r"_\{(.)\}$", r"_\1", code)  # the parser drops braces around one character


def _code(formula: Explicit, name: str) -> str:
    return next((code for code, written in formula.variables.items() if written == name), "")


def _equal(gold: Any, answer: Any) -> bool:
    if gold == answer:
        return True
    if gold.is_Rational and answer.is_Rational:
        return False
    return _agree(gold, answer, lambda left, right, digits: _close(left, right, digits))


def _proportion(gold: Any, answer: Any) -> int:
    ratios: list[Any] = []
    for point in _points(gold, answer):
        left, right = _at(gold, point, _DIGITS), _at(answer, point, _DIGITS)
        if left is None or right is None or left == 0 or right == 0:
            return 0
        ratios.append(left / right)
    if not all(_close(ratios[0], ratio, _DIGITS) for ratio in ratios):
        return 0
    point = _points(gold, answer)[0]
    ratio = sympy.nsimplify(ratios[0], rational=True, tolerance=sympy.Rational(1, 10**30))
    if not ratio.is_Rational or not _close(
        _at(gold, point, _MANY_DIGITS), _at(ratio * answer, point, _MANY_DIGITS), _MANY_DIGITS
    ):
        return 0
    return 1 if ratio > 0 else -1


def _agree(gold: Any, answer: Any, close: Any) -> bool:
    points = _points(gold, answer)
    for point, digits in [*((point, _DIGITS) for point in points), (points[0], _MANY_DIGITS)]:
        left, right = _at(gold, point, digits), _at(answer, point, digits)
        if left is None or right is None or not close(left, right, digits):
            return False
    return True


def _points(gold: Any, answer: Any) -> list[dict[Any, Any]]:
    """Returns values for all variables: fixed, irregular, of both signs and several sizes."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=lambda symbol: symbol.name)
    if not symbols:
        return [{}]
    generator = random.Random(len(symbols))
    return [
        {s: generator.choice([1, -1]) * sympy.Rational(generator.randint(101, 9973), 997) for s in symbols}
        for _ in range(_POINTS)
    ]


def _at(expression: Any, point: dict[Any, Any], digits: int) -> Any:
    """Returns the value as a number, None where it has none."""
    try:
        value = expression.subs(point).evalf(digits + 10, maxn=3 * digits)
    except (ArithmeticError, TypeError, ValueError):
        return None
    finite = value.is_number and not value.has(sympy.nan, sympy.zoo, sympy.oo)
    return value if finite and not value.free_symbols else None


def _close(left: Any, right: Any, digits: int) -> bool:
    if left is None or right is None:
        return False
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= size * sympy.Float(10) ** (-digits + 5))


def _equal_up_to_constants(gold: tuple[Any, Explicit], answer: tuple[Any, Explicit]) -> bool:
    """Returns whether the formulas differ only in what their arbitrary constants are called."""
    names = [
        {_symbol_name(code): name for code, name in side[1].variables.items()} for side in (gold, answer)
    ]
    theirs = [{s.name for s in side[0].free_symbols} for side in (gold, answer)]
    left, right = sorted(theirs[0] - theirs[1]), sorted(theirs[1] - theirs[0])
    if not theirs[0] & theirs[1] or not 1 <= len(left) == len(right) <= 3:
        return False
    if not _all_match(_CONSTANTS_OF_GOLD, [names[0][s] for s in left]):
        return False
    if not _all_match(_CONSTANTS_OF_ANSWER, [names[1][s] for s in right]):
        return False
    renamings = (
        dict(zip(map(sympy.Symbol, right), map(sympy.Symbol, order), strict=True))
        for order in itertools.permutations(left)
    )
    return any(_equal(gold[0], answer[0].subs(renaming, simultaneous=True)) for renaming in renamings)


def _all_match(pattern: re.Pattern[str], names: Sequence[str]) -> bool:
    return all(pattern.fullmatch(name) for name in names)
