"""Only known words are units."""

from __future__ import annotations

import pytest

from turnpoint.verifiers.math.clean import clean
from turnpoint.verifiers.math.units import split_unit


@pytest.mark.parametrize(
    ("text", "body", "unit"),
    [
        (r"5\text{ cm}", "5", "cm"),
        (r"5\,\mathrm{cm}^2", "5", "cm^2"),
        (r"5\text{ square centimeters}", "5", "cm^2"),
        (r"60\text{ km/h}", "60", "km/h"),
        ("60 miles per hour", "60", "mi/h"),
        ("3 apples", "3", "apple"),
        (r"\$18.00", "18.00", "dollar"),
        (r"-\$5", "-5", "dollar"),
        (r"50\%", "50", "%"),
        (r"90^\circ", "90", "deg"),
        (r"20^\circ\text{C}", "20", "degC"),
        (r"\frac{1}{2}\text{ hours}", r"\frac{1}{2}", "h"),
    ],
)
def test_units_are_split_off(text: str, body: str, unit: str) -> None:
    assert split_unit(clean(text)) == (body, unit)


@pytest.mark.parametrize(
    "text", ["5m", "2s", "5x", "5 million", r"5\text{ dozen}", r"5\text{ or }6", "5k", "x cm y", "cm"]
)
def test_anything_else_stays(text: str) -> None:
    assert split_unit(clean(text)) == (clean(text), "")
