"""What is refused before any algebra, and what must not be."""

from __future__ import annotations

import pytest

from turnpoint.verifiers.math.clean import clean
from turnpoint.verifiers.math.limits import refusal


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 501, "over 500 characters"),
        ("(x+" * 60 + "1" + ")" * 60, "brackets nested"),
        ("10^{10^{10}}", "tower"),
        ("9^9^9^9", "tower"),
        ("((2^{999})^{999})", "tower"),
        ("10^{1000000000}", "huge power"),
        ("2^{3!}", "tower"),
        ("9" * 300, "digits"),
        (r"\sum_{k=1}^{10^9} \frac{1}{k^2}", "sum"),
        (r"\prod_{k=1}^{9}k", "sum"),
        (r"\int_0^1 x dx", "sum"),
        (r"\binom{10^9}{5}", "binomial"),
        (r"\binom{100000}{5000}", "binomial"),
        ("100000!", "factorial"),
        ("(10!)!", "factorial"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    assert reason in refusal(clean(text))


@pytest.mark.parametrize(
    "text",
    [
        "2^{100}",
        "e^{x^2}",
        "x^{2^n}",
        "10^{-9}",
        r"\binom{10}{5}",
        "20!",
        r"\frac{1}{2004!}",
        "123456789",
        "n!",
    ],
)
def test_not_refused(text: str) -> None:
    assert refusal(clean(text)) == ""
