r"""Rewrites a cleaned formula into LaTeX that can be read in one way only, for math-verify's parser.

That parser is made to find something in everything: it reads `(2)(3)` and `2 3` as 5, `A` as `a`, `x'` as x
and `101_2` as 101, and takes decimals as floats. So every product gets its sign, every variable a name that
keeps its case and index, every decimal becomes a fraction, and what is not on the list below is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from turnpoint.verifiers.math.numbers import read_number


class UnreadableFormula(Exception):
    """A formula outside the grammar, or one that can be read in two ways."""


_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|"
    "tau|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega"
)
_FUNCTION = re.compile(r"\\(?:(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|ln|log|exp)")
_TOKEN = re.compile(
    r" *(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    rf"|(?P<name>(?:[A-Za-z]|\\(?:{_GREEK})(?![A-Za-z]))(?: ?_\{{[A-Za-z0-9, ]+\}})?)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<sign>[-+/!^_(){}|\[\]]))",
)
_ATOMS = {r"\pi": r"\pi", r"\infty": r"\infty"}
_NO_FACTORS = (r"\cdot", r"\rfloor", r"\rceil")
_LOG_BASE = "log base"  # a bare \log means base ten to some and e to others: it equals only another \log
_SPACED_NUMBERS = re.compile(r"[0-9.] +[0-9.]")


@dataclass(slots=True)
class Explicit:
    """A formula without ambiguity, and the variables in it: parser name -> written name."""

    latex: str
    variables: dict[str, str]


def explicit(text: str) -> Explicit:
    r"""Returns `text` with nothing implicit.

    >>> explicit("2(x+0.5)").latex
    '2\\cdot (v_{120}+\\frac{1}{2})'

    Raises UnreadableFormula.
    """
    if _SPACED_NUMBERS.search(text):
        raise UnreadableFormula(text)
    writer = _Writer(_tokens(text))
    latex = writer.expression(frozenset({""}))
    return Explicit(latex, writer.variables)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnreadableFormula(text)
        kind = match.lastgroup or ""
        tokens.append((kind, match.group(kind).replace(" ", "")))
        at = match.end()
    return [*tokens, ("end", "")]


class _Writer:
    """A recursive descent over the tokens that writes as it reads."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._inside_bars = False
        self.variables: dict[str, str] = {}

    def expression(self, stop: frozenset[str]) -> str:
        parts = [self._signed_term()]
        while self._next() not in stop:
            if self._next() not in ("+", "-"):
                raise UnreadableFormula(self._next())
            parts += [self._take(), self._term()]
        return "".join(parts)

    def _signed_term(self) -> str:
        return self._take() + self._term() if self._next() in ("+", "-") else self._term()

    def _term(self) -> str:
        parts = [self._factor()]
        while True:
            if self._next() == r"\cdot":
                self._take()
                parts += [r"\cdot ", self._signed_factor()]
            elif self._next() == "/":
                self._take()
                parts = [rf"\frac{{{''.join(parts)}}}{{{self._factor()}}}"]
                if self._starts_factor():
                    raise UnreadableFormula("1/2x may mean two things")
            elif self._starts_factor():
                parts += [r"\cdot ", self._factor()]
            else:
                return "".join(parts)

    def _signed_factor(self) -> str:
        if self._next() in ("+", "-"):
            return f"({self._take()}{self._factor()})"
        return self._factor()

    def _starts_factor(self) -> bool:
        kind, token = self._tokens[self._at]
        if kind == "sign":
            return token in "([{" or (token == "|" and not self._inside_bars)
        return kind in ("number", "name") or (kind == "command" and token not in _NO_FACTORS)

    def _factor(self) -> str:
        base = self._atom()
        while self._next() in ("^", "!"):
            if self._take() == "!":
                base = f"({base})!"
            else:
                base = (
                    f"{{{base}}}^{{{self._group()}}}"
                    if base.startswith("(")
                    else f"({base})^{{{self._group()}}}"
                )
        return base

    def _atom(self) -> str:
        kind, token = self._tokens[self._at]
        self._at += 1
        match kind, token:
            case "number", _:
                if self._tokens[self._at][1] == r"\frac" or self._next() == "_":
                    raise UnreadableFormula(token)
                return _number(token)
            case "name", _:
                return self._name(token)
            case "command", r"\frac":
                return rf"\frac{{{self._group()}}}{{{self._group()}}}"
            case "command", r"\binom":
                return rf"\binom{{{self._group()}}}{{{self._group()}}}"
            case "command", r"\sqrt":
                return self._root()
            case "command", _ if token in _ATOMS:
                return _ATOMS[token]
            case "command", _ if _FUNCTION.fullmatch(token):
                return self._function(token)
            case "sign", "(" | "[" | "{":
                closing = {"(": ")", "[": "]", "{": "}"}[token]
                return f"({self._until(closing)})"
            case "command", r"\lfloor" | r"\lceil":
                closing = token.replace(r"\l", r"\r")
                return f"{token} {self._until(closing)}{closing} "
            case "sign", "|" if not self._inside_bars:
                self._inside_bars = True
                inner = self._until("|")
                self._inside_bars = False
                return f"(|{inner}|)"
            case _:
                raise UnreadableFormula(token)

    def _root(self) -> str:
        if self._next() != "[":
            return rf"\sqrt{{{self._group()}}}"
        self._take()
        index = self._until("]")
        return rf"\sqrt[{index}]{{{self._group()}}}"

    def _function(self, name: str) -> str:
        base = power = ""
        while self._next() in ("_", "^"):
            if self._take() == "_":
                base = self._group()
            else:
                power = self._group()
        argument = self._argument()
        if name == r"\log":
            base = base or self._name(_LOG_BASE)
            value = rf"\frac{{\ln({argument})}}{{\ln({base})}}"
        elif base or (power == "-1"):
            raise UnreadableFormula(name)
        else:
            value = rf"{name}({argument})"
        return rf"({value})^{{{power}}}" if power else value

    def _argument(self) -> str:
        r"""Reads (x), or without brackets a product of numbers, variables and roots: \sin 2x."""
        if self._next() in ("(", "{", "|"):
            return self._factor_without_power()
        parts: list[str] = []
        while self._tokens[self._at][0] in ("number", "name") or self._next() in (r"\pi", r"\frac", r"\sqrt"):
            parts.append(self._factor())
        if not parts:
            raise UnreadableFormula("a function without argument")
        return r"\cdot ".join(parts)

    def _factor_without_power(self) -> str:
        atom = self._atom()
        if self._next() == "^":
            raise UnreadableFormula("ln(x)^2 may mean two things")
        return atom

    def _name(self, name: str) -> str:
        if name == "e":
            return "e"
        if name in ("f", "g") and self._next() == "(":
            raise UnreadableFormula("an unknown function")
        code = f"v_{{{int.from_bytes(name.encode())}}}"
        self.variables[code] = name
        return code

    def _group(self) -> str:
        if self._take() != "{":
            raise UnreadableFormula("an argument without braces")
        return self._until("}")

    def _until(self, closing: str) -> str:
        bars, self._inside_bars = self._inside_bars, closing == "|"
        inner = self.expression(frozenset({closing}))
        self._inside_bars = bars
        self._take()
        return inner

    def _next(self) -> str:
        return self._tokens[self._at][1]

    def _take(self) -> str:
        token = self._tokens[self._at][1]
        self._at += 1 if self._at < len(self._tokens) - 1 else 0
        return token


def _number(token: str) -> str:
    value = read_number(token) or Fraction(0)
    return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
