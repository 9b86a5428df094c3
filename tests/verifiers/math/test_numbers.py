"""Numbers are read exactly or not at all."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.verifiers.math.clean import clean
from turnpoint.verifiers.math.numbers import number_word, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", Fraction(12)),
        ("-0.25", Fraction(-1, 4)),
        (".5", Fraction(1, 2)),
        ("+5.", Fraction(5)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        ("3/4", Fraction(3, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"-2\frac{1}{2}", Fraction(-5, 2)),
        ("2 2/3", Fraction(8, 3)),
        ("1.5e3", Fraction(1500)),
        (r"1.2\cdot 10^{-4}", Fraction(12, 100_000)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"0.\overline{142857}", Fraction(1, 7)),
    ],
)
def test_hand_values(text: str, value: Fraction) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        ".",
        "1 2",
        "1.2.3",
        "--5",
        "5x",
        r"\frac{1}{0}",
        "1/0",
        r"2\frac{5}{3}",
        "1e9999",
        "\u0663",
        "1,2",
    ],
)
def test_what_is_no_number(text: str) -> None:
    assert read_number(text) is None


@given(st.fractions(max_denominator=10**6))
def test_a_fraction_survives_writing(value: Fraction) -> None:
    sign = "-" if value < 0 else ""
    written = rf"{sign}\dfrac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    assert read_number(clean(written)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6))
def test_a_decimal_is_exact(value: object) -> None:
    assert read_number(f"{value:f}") == Fraction(str(value))


def test_number_words() -> None:
    assert [number_word(word) for word in ("zero", "Twelve", "forty", "ninety-nine")] == [
        "0",
        "12",
        "40",
        "99",
    ]
    assert [number_word(word) for word in ("", "million", "twenty ten", "oneone")] == [None] * 4
