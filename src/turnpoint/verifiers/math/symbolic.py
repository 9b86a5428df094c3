"""Decides whether two formulas are equal; runs in a worker, where it may hang or grow.

math-verify reads the LaTeX into sympy. Its own comparison is not used: it rounds to six decimals (1/2^99
equals 1/2^98, sqrt(2) equals 1.414214) and calls equations without real solutions equal. Here constants must
agree to 4,000 digits; formulas, at random rational points to 50 digits and at one to 4,000.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import math_verify
from latex2sympy2_extended import NormalizationConfig

from turnpoint.types import Json
from turnpoint.verifiers.math.compare import same
from turnpoint.verifiers.math.formula import UnreadableFormula, explicit
from turnpoint.verifiers.math.shape import read

sympy: Any = importlib.import_module("sympy")  # untyped libraries are crossed here
_parse: Any = math_verify.parse

_DIGITS = 50
_MANY_DIGITS = 4000
_LAST_DIGITS = 5  # of those, left to rounding
_POINTS = 8
_MOST_CONSTANTS = 3
_AS_WRITTEN = math_verify.LatexExtractionConfig(
    boxed_match_priority=-1,
    normalization_config=NormalizationConfig(
        basic_latex=False, units=False, malformed_operators=False, nits=False, boxed="none"
    ),
)
_CONSTANT_OF_GOLD = re.compile(r"[Cc]|[CcKk]_\{[0-9]\}")
_CONSTANT_OF_ANSWER = re.compile(r"[A-DKck]|[A-DKck]_\{[0-9]\}")
# A reference with one of these is understood by people, and here only by its spelling.
_LITERAL_ONLY = re.compile(
    r"'|[0-9)]_|\\l?dots|\\cdots|:|\\ne(?![A-Za-z])|\\overline|\\text|\\mathbb|\\setminus|[fg]\(|\\p?mod|"
    r"\\bmod|\\equiv|\\angle|\\vec"
)


class UnreadableGold(Exception):
    """The reference answer is no formula."""


def grader() -> Callable[[str, str], Json]:
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
    except RecursionError:  # sympy's, on an answer like 1000!!
        return "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A formula as sympy holds it, and what its variables are called in the answer."""

    value: Any
    names: Mapping[str, str]


class Symbolic:
    """An `Arithmetic` of formulas."""

    def equal(self, gold: str, answer: str) -> bool:
        """Returns whether both have the same value wherever they have one."""
        if gold == answer:
            return True
        left, right = _read_gold(gold), read_expression(answer)
        if left is None or right is None:
            return False
        return _equal(left.value, right.value) or _equal_up_to_constants(left, right)

    def proportion(self, gold: str, answer: str) -> int:
        """Returns the sign of the rational number gold / answer, 0 where that is none."""
        left, right = _read_gold(gold), read_expression(answer)
        return 0 if left is None or right is None else _proportion(left.value, right.value)


def _read_gold(text: str) -> Expression | None:
    expression = read_expression(text)
    if expression is None and not _LITERAL_ONLY.search(text):
        raise UnreadableGold(text)
    return expression


@lru_cache(maxsize=256)
def read_expression(text: str) -> Expression | None:
    """Returns the cleaned formula `text` as sympy, None where it is not understood or has no value."""
    try:
        formula = explicit(text)
    except UnreadableFormula:
        return None
    found = _parse(f"${formula.latex}$", [_AS_WRITTEN], fallback_mode="no_fallback", parsing_timeout=None)
    if len(found) != 1 or not isinstance(found[0], sympy.Expr):
        return None
    symbols = found[0].free_symbols
    if not {symbol.name for symbol in symbols} <= set(formula.variables):
        return None
    known = {
        symbol: sympy.I if formula.variables[symbol.name] == "i" else sympy.Symbol(symbol.name)
        for symbol in symbols
    }
    value = found[0].subs(known).doit()
    if not isinstance(value, sympy.Expr) or value.has(sympy.nan, sympy.zoo):
        return None
    if value.has(sympy.oo, -sympy.oo) and text not in (r"\infty", r"-\infty"):  # infinity + 1 says nothing
        return None
    return Expression(value=value, names=formula.variables)


def _equal(gold: Any, answer: Any) -> bool:
    if gold == answer:
        return True
    points = _points(gold, answer)
    rounds = [*((point, _DIGITS) for point in points), (points[0], _MANY_DIGITS)]
    return all(_close(_at(gold, point, n), _at(answer, point, n), n) for point, n in rounds)


def _proportion(gold: Any, answer: Any) -> int:
    points = _points(gold, answer)
    pairs = [(_at(gold, point, _DIGITS), _at(answer, point, _DIGITS)) for point in points]
    if any(left is None or right is None or left == 0 or right == 0 for left, right in pairs):
        return 0
    ratio = sympy.nsimplify(pairs[0][0] / pairs[0][1], rational=True, tolerance=sympy.Rational(1, 10**30))
    if not ratio.is_Rational or not _equal(gold, ratio * answer):
        return 0
    return 1 if ratio > 0 else -1


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


def _at(expression: Any, point: Mapping[Any, Any], digits: int) -> Any:
    """Returns the value at `point` as a number, exact where it is rational; None where it has none."""
    try:
        value = expression.subs(point)
        if not value.is_Rational:
            value = value.evalf(digits + 10, maxn=3 * digits)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return value if value.is_number and value.is_finite else None


def _close(left: Any, right: Any, digits: int) -> bool:
    if left is None or right is None:
        return False
    if left.is_Rational and right.is_Rational:
        return bool(left == right)
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= size * sympy.Float(10) ** (_LAST_DIGITS - digits))


def _equal_up_to_constants(gold: Expression, answer: Expression) -> bool:
    """Returns whether the formulas differ only in what their arbitrary constants are called."""
    ours, theirs = gold.value.free_symbols, answer.value.free_symbols
    left, right = (sorted(only, key=lambda symbol: symbol.name) for only in (ours - theirs, theirs - ours))
    if not ours & theirs or not 1 <= len(left) == len(right) <= _MOST_CONSTANTS:
        return False
    if not all(_CONSTANT_OF_GOLD.fullmatch(gold.names[symbol.name]) for symbol in left):
        return False
    if not all(_CONSTANT_OF_ANSWER.fullmatch(answer.names[symbol.name]) for symbol in right):
        return False
    renamings = (dict(zip(right, order, strict=True)) for order in itertools.permutations(left))
    return any(_equal(gold.value, answer.value.subs(renaming, simultaneous=True)) for renaming in renamings)
