"""Formulas are read in one way or refused; their values match an independent evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from turnpoint.verifiers.math.clean import clean
from turnpoint.verifiers.math.formula import UnreadableFormula, explicit
from turnpoint.verifiers.math.symbolic import Symbolic

X, Y = Fraction(7, 3), Fraction(-5, 11)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("(2)(3)", r"(2)\cdot (3)"),
        ("2x", r"2\cdot v_{120}"),
        ("0.5", r"\frac{1}{2}"),
        (r"\sin 2x", r"\sin(2\cdot v_{120})"),
        ("x/2", r"\frac{v_{120}}{2}"),
    ],
)
def test_everything_is_written_out(text: str, latex: str) -> None:
    assert explicit(clean(text)).latex == latex


def test_letters_of_both_cases_and_indices_are_variables_of_their_own() -> None:
    assert sorted(explicit("aAa_{1}a_{2}\\alpha").variables.values()) == [
        "A",
        "\\alpha",
        "a",
        "a_{1}",
        "a_{2}",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 3",
        "1/2x",
        "101_{2}",
        "x'",
        "f(x)",
        "x+",
        "(x",
        "x)",
        r"\foo",
        r"\ln(x)^{2}",
        r"2\frac{5}{3}",
        "x=1",
        "a,b",
        "?",
    ],
)
def test_ambiguous_and_unknown_formulas_are_refused(text: str) -> None:
    with pytest.raises(UnreadableFormula):
        explicit(text)


def random_formula(rng: random.Random, depth: int) -> tuple[str, Callable[[], Fraction], bool]:
    """Returns LaTeX, its value at (X, Y), and whether it is an atom that needs no brackets."""
    if depth == 0:
        number = rng.randint(0, 99)
        leaf: tuple[str, Fraction] = rng.choice(
            [(str(number), Fraction(number)), (f"{number / 10}", Fraction(number, 10)), ("x", X), ("y", Y)]
        )
        return leaf[0], lambda: leaf[1], True
    left, f, left_atom = random_formula(rng, depth - 1)
    right, g, right_atom = random_formula(rng, depth - 1)
    a, b = left if left_atom else f"({left})", right if right_atom else f"({right})"
    power = rng.randint(0, 3)
    return rng.choice(
        [
            (f"{left}+{b}", lambda: f() + g(), False),
            (f"{left}-{b}", lambda: f() - g(), False),
            (rf"{a}\cdot {b}", lambda: f() * g(), False),
            (f"({left})({right})", lambda: f() * g(), False),
            (rf"\frac{{{left}}}{{{right}}}", lambda: f() / g(), True),
            (f"{a}/{b}", lambda: f() / g(), False),
            (f"({left})^{power}", lambda: f() ** power, True),
        ]
    )


def test_values_match_an_independent_evaluation() -> None:
    rng = random.Random(5)
    arithmetic = Symbolic()
    checked = 0
    for _ in range(30):
        text, value, _ = random_formula(rng, rng.randint(1, 3))
        try:
            expected = value()
        except ZeroDivisionError:
            continue
        at = clean(
            text.replace("x", rf"\frac{{{X.numerator}}}{{{X.denominator}}}").replace("y", r"(-\frac{5}{11})")
        )
        number = f"{expected.numerator}/{expected.denominator}"
        assert arithmetic.equal(at, number), text
        assert not arithmetic.equal(at, f"{expected.numerator + 1}/{expected.denominator}"), text
        checked += 1
    assert checked > 20
