r"""Refuses answers that no honest solution needs and that no computer algebra should be given.

Towers of powers, factorials and sums over a billion terms can take for ever; a wall clock would stop them
too, but each would cost its whole time limit.
"""

from __future__ import annotations

import re

_LONGEST = 500  # characters
_DEEPEST = 50  # brackets
_LARGEST_EXPONENT = 1000
_LARGEST_TOWER = 100_000
_LARGEST_FACTORIAL = 3000
_LARGEST_BINOMIAL = 1000
_BIGGEST_INTEGER = 200  # digits

_OPENING = re.compile(r"[({\[]")
_BRACKETS = re.compile(r"\\.|[(){}\[\]]", re.DOTALL)
_UNBOUNDED = re.compile(r"\\(?:sum|prod|i*int|oint|lim|limsup|liminf|coprod)(?![A-Za-z])")
_DIGITS = re.compile(r"[0-9]+")
_POWER = re.compile(r"\^\{")
_NUMBER_POWER = re.compile(r"[0-9)}]\^\{[^{}]*[0-9]")
_FACTORIAL = re.compile(r"(.)!", re.DOTALL)
_NUMBER_BEFORE = re.compile(r"([0-9]+)$")
_BINOMIAL = re.compile(r"\\binom|(?<![A-Za-z])[CP]\(")


def refusal(text: str) -> str:
    """Returns why the cleaned answer `text` is not evaluated, "" if it is.

    >>> refusal("10^{10^{10}}")
    'a tower of powers'
    """
    if len(text) > _LONGEST:
        return f"over {_LONGEST} characters"
    if _depth(text) > _DEEPEST:
        return f"brackets nested over {_DEEPEST} deep"
    if _UNBOUNDED.search(text):
        return "a sum, product, integral or limit"
    integers = [int(digits) for digits in _DIGITS.findall(text) if len(digits) <= _BIGGEST_INTEGER]
    if len(integers) < len(_DIGITS.findall(text)):
        return f"an integer of over {_BIGGEST_INTEGER} digits"
    if reason := _powers(text):
        return reason
    if _BINOMIAL.search(text) and ("^" in text or max(integers, default=0) > _LARGEST_BINOMIAL):
        return "a huge binomial"
    return _factorials(text)


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        if len(bracket) == 1:
            depth += 1 if _OPENING.match(bracket) else -1
            deepest = max(deepest, depth)
    return deepest


def _powers(text: str) -> str:
    """Looks at every exponent: nothing huge in it, no power of a number by a number, none upon another."""
    upon_brackets, plain = 1, 1
    for match in _POWER.finditer(text):
        exponent = _group(text, match.end())
        integers = [int(digits) for digits in _DIGITS.findall(exponent)]
        largest = max(integers, default=1)
        if largest > _LARGEST_EXPONENT:
            return "a huge power"
        chained = text.startswith("^", match.end() + len(exponent) + 1)
        if chained or _NUMBER_POWER.search(exponent) or exponent.count("^") > 1 or "!" in exponent:
            return "a tower of powers"
        if text[match.start() - 1 : match.start()] == ")":
            upon_brackets *= largest
        else:
            plain = max(plain, largest)
    return "a tower of powers" if upon_brackets > 1 and upon_brackets * plain > _LARGEST_TOWER else ""


def _group(text: str, start: int) -> str:
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start:index]
    return text[start:]


def _factorials(text: str) -> str:
    for match in _FACTORIAL.finditer(text):
        before = match.group(1)
        number = _NUMBER_BEFORE.search(text[: match.start() + 1])
        if before in ")}]!" or (number and int(number.group()) > _LARGEST_FACTORIAL):
            return "a huge factorial"
    return ""
