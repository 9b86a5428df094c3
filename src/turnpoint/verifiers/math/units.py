r"""Splits units from numbers, by lists of known words: an unknown word is never dropped.

"5 \text{ cm}" is 5 with the unit cm. "5 \text{ million}" stays as it is, as does "5x".
"""

from __future__ import annotations

import re
from fractions import Fraction

from turnpoint.verifiers.math.numbers import read_number

# Each line is one unit, by its canonical name.
_UNITS = """
cm centimeter centimetre
mm millimeter millimetre
km kilometer kilometre
m meter metre
in inch inches
ft foot feet
yd yard
mi mile
g gm gram
kg kilogram
mg milligram
lb lbs pound
oz ounce
s sec second
min minute
h hr hour
day
week
month
yr year
L l liter litre
mL ml milliliter millilitre
gal gallon
cup
pint
quart
acre
hectare
N newton
J joule
W watt
kW kilowatt
Hz hertz
V volt
mph
kmh kph
unit
degC celsius
degF fahrenheit
rad radian
dollar usd buck
cent
euro eur
gbp
rupee rs
"""
_COUNTED = """
apple orange egg book student people person child children boy girl man men woman women way time
pencil pen ball marble car cookie cake pizza slice page point question problem game coin card ticket
flower tree bird dog cat cow chicken duck horse fish animal toy box bag bottle candy candies piece
chair table house room worker player team friend member stamp sticker shirt shoe sock balloon crayon
clip bead rose seat number integer solution triangle edge vertex vertices side face root digit
letter word term step trip ride mark sheep
"""
_KNOWN = {
    **{word: word for word in _COUNTED.split()},
    **{word: line.split()[0] for line in _UNITS.splitlines() for word in line.split()},
}
_SHAPES = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_CURRENCY = {r"\$": "dollar", "$": "dollar", r"\euro": "euro", r"\pounds": "gbp"}
_LEADING = re.compile(r"([-+]?)(\\\$|\$|\\euro(?![A-Za-z])|\\pounds(?![A-Za-z])) ?([-+]?.+)")
_TRAILING_TEXT = re.compile(r"(.*?[^\\\s])((?:/?\\text\{[^{}]*\}(?:\^\{-?[0-9]\})?)+)")
_TRAILING_WORDS = re.compile(r"(.*[0-9}]) ?((?:[A-Za-z]{2,}(?: |/|\^\{[0-9]\}|$)|(?<=/)[A-Za-z]$)+)")
_DEGREES = re.compile(r"(.+?)\\degree ?(?:\\text\{([CF])\}|([CF]))?")
_UNIT_TOKEN = re.compile(r"\\text|[{} .]|([A-Za-z]+)|(\^\{-?[0-9]\}|\^-?[0-9])|(/)")


def split_unit(text: str) -> tuple[str, str]:
    r"""Returns the cleaned answer `text` without its unit, and the unit's canonical name, "" without one.

    >>> split_unit(r"5\text{cm}^{2}"), split_unit(r"5\text{million}")
    (('5', 'cm^2'), ('5\\text{million}', ''))
    """
    if match := _LEADING.fullmatch(text):
        body, unit = split_unit(match.group(3))
        currency = _CURRENCY[match.group(2)]
        if unit in ("", currency):
            return match.group(1) + body, currency
    if text.endswith(r"\%") or text.endswith("%"):
        return text.removesuffix("%").removesuffix("\\"), "%"
    if (match := _DEGREES.fullmatch(text)) and r"\degree" not in match.group(1):
        return match.group(1), f"deg{match.group(2) or match.group(3) or ''}"
    for pattern in (_TRAILING_TEXT, _TRAILING_WORDS):
        if match := pattern.fullmatch(text):
            unit = _canonical(match.group(2))
            if unit:
                return match.group(1), unit
    return text, ""


def _canonical(text: str) -> str:
    """Returns the canonical name of a unit, "" when any part of it is unknown."""
    parts: list[str] = []
    power = ""
    at = 0
    while at < len(text):
        token = _UNIT_TOKEN.match(text, at)
        if token is None:
            return ""
        word, exponent, slash = token.groups()
        at = token.end()
        if exponent:
            parts.append("^" + exponent.strip("^{}"))
        elif slash or word == "per":
            parts.append("/")
        elif word and word.lower() in _SHAPES:
            power = _SHAPES[word.lower()]
        elif word and word.lower() in ("percent", "degree", "degrees"):
            parts.append("%" if word.lower() == "percent" else "deg")
        elif word:
            name = _name(word)
            if not name:
                return ""
            parts.append(name + power)
            power = ""
    return "".join(parts)


def _name(word: str) -> str:
    for candidate in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if candidate in _KNOWN and not (len(word) == 1 and candidate != word):
            return _KNOWN[candidate]
    return ""


def same_unit(gold: str, answer: str) -> bool:
    """Returns whether two units do not contradict each other; a missing one contradicts none."""
    return not gold or not answer or gold == answer


def percent_readings(text: str, unit: str) -> list[str]:
    r"""Returns what a percentage may be written as without its sign: "50" with "%" is 0.5, and also 50.

    A bare 50 for 50% omits the unit. Below 2 this is not offered: 1 for 1% would be a hundredfold error that
    nobody could tell from 100%.
    """
    value = read_number(text)
    if unit != "%":
        return [text]
    readings = [rf"\frac{{{text}}}{{100}}"]
    if value is not None:
        readings[0] = str(value / 100)
        if abs(value) >= 2:
            readings.append(text)
    return readings


def degrees_in_radians(text: str) -> str:
    """Returns the angle of `text` degrees, in radians, as LaTeX."""
    value = read_number(text)
    if value is None:
        return rf"({text})\cdot \frac{{\pi}}{{180}}"
    value /= Fraction(180)
    return rf"\frac{{{value.numerator}\pi}}{{{value.denominator}}}"
