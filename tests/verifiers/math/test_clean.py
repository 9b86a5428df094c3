"""One spelling for equal answers; nothing a reader would tell apart is joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.verifiers.math.clean import clean


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        (r"$\dfrac12$", r"\frac{1}{2}"),
        (r"\( \tfrac{\sqrt3}3 \)", r"\frac{\sqrt{3}}{3}"),
        (r"\frac\pi2", r"\frac{\pi}{2}"),
        (r"\sqrt[3]2", r"\sqrt[3]{2}"),
        ("x\u00b2 \u2212 1", "x^{2}-1"),
        ("x_1^2", "x_{1}^{2}"),
        (r"\left( 1,\, 2 \right)", "(1,2)"),
        ("((7))", "7"),
        ("**7**", "7"),
        ("7.", "7"),
        (r"x \leqslant 2", r"x\le 2"),
        (r"90^\circ", r"90\degree"),
        (r"\mathrm{i}", "i"),
        (r"\textbf{Yes}", r"\text{Yes}"),
        (r"10{,}000", "10000"),
        ("1,000,000", "1000000"),
        ("sin(x)", r"\sin(x)"),
    ],
)
def test_spellings(written: str, spelled: str) -> None:
    assert clean(written) == spelled


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1 2", "12"),
        ("1\x002", "12"),
        ("1, 200", "1,200"),
        ("5\u00b2", "52"),
        ("2\u00bd", "21/2"),
        ("x'", "x"),
        ("x_1", "x1"),
    ],
)
def test_different_answers_stay_different(left: str, right: str) -> None:
    assert clean(left) != clean(right)


@given(st.text(alphabet=r"01x+-^_{}()[],.\$ frac\text", max_size=40))
def test_cleaning_never_fails_and_settles(text: str) -> None:
    once = clean(text)
    assert len(clean(once)) <= len(once) + 40
