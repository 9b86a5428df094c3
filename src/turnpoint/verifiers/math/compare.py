"""Compares the shapes of two answers; asks an `Arithmetic` only about single formulas.

Nothing is equal by default: what is not recognised as the same is different.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnpoint.verifiers.math.numbers import read_number
from turnpoint.verifiers.math.shape import (
    Choice,
    Formula,
    Items,
    Matrix,
    Named,
    Relation,
    Shape,
    Words,
    read,
)
from turnpoint.verifiers.math.units import degrees_in_radians, percent_readings, same_unit

_ORDERED = ("()", "[]", "[)", "(]")
_OPTION = re.compile(r"[A-J]")
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_CONSTANT = (r"\pi", "e", "i", r"\frac", r"\sqrt", r"\cdot", r"\infty")


class Undecided(Exception):
    """Raised by an `Arithmetic` that cannot tell."""


@runtime_checkable
class Arithmetic(Protocol):
    """Decides about formulas, given as cleaned LaTeX."""

    def equal(self, gold: str, answer: str) -> bool:
        """Returns whether both are the same value, or the same function of the same variables."""
        ...

    def proportion(self, gold: str, answer: str) -> int:
        """Returns the sign of gold / answer where that is one number, not zero; 0 otherwise."""
        ...


class ExactNumbers:
    """Decides about rational numbers and identical texts, in microseconds; raises Undecided otherwise."""

    def equal(self, gold: str, answer: str) -> bool:
        if gold == answer:
            return True
        left, right = read_number(gold), read_number(answer)
        if left is None or right is None:
            raise Undecided
        return left == right

    def proportion(self, gold: str, answer: str) -> int:
        raise Undecided


def same(gold: Shape, answer: Shape, arithmetic: Arithmetic) -> bool:
    """Returns whether `answer` says what `gold` says."""
    match gold, answer:
        case Words(), Words():
            return gold.text == answer.text
        case Choice(), _:
            return _same_choice(gold, answer, arithmetic)
        case _, Choice():
            return _same_choice(answer, gold, arithmetic)
        case Named(), Named():
            return _same_named(gold, answer, arithmetic)
        case Relation(), Relation():
            return _same_relation(gold, answer, arithmetic)
        case (Relation(), Named()) | (Named(), Relation()):
            return _same_relation(_as_relation(gold), _as_relation(answer), arithmetic)
        case Named(), _:
            return same(_value(gold, arithmetic), answer, arithmetic)
        case _, Named():
            return same(gold, _value(answer, arithmetic), arithmetic)
        case Formula(), Relation():
            return _is_identity(answer, arithmetic) and same(gold, Formula(text=answer.right), arithmetic)
        case Formula(), Formula():
            return _same_formula(gold, answer, arithmetic)
        case Matrix(), Matrix():
            return [len(row) for row in gold.rows] == [len(row) for row in answer.rows] and _in_order(
                _flat(gold), _flat(answer), arithmetic
            )
        case (Matrix(), Items()) | (Items(), Matrix()):
            return (
                _is_vector(gold) and _is_vector(answer) and _in_order(_flat(gold), _flat(answer), arithmetic)
            )
        case Items(), Items():
            return _same_items(gold, answer, arithmetic)
        case (Items(kind="set", parts=(only,)), Formula()):
            return same(only, answer, arithmetic)
        case (Formula(), Items(kind="set", parts=(only,))):
            return same(gold, only, arithmetic)
        case _:
            return False


def _same_choice(choice: Choice, other: Shape, arithmetic: Arithmetic) -> bool:
    """The letter decides where both have one, else what the choice says beside its letter."""
    if isinstance(other, Choice):
        return choice.letter == other.letter
    if isinstance(other, Formula) and _OPTION.fullmatch(other.text):
        return choice.letter == other.text
    return bool(choice.rest) and _same_rest(other, choice, arithmetic)


def _same_rest(shape: Shape, choice: Choice, arithmetic: Arithmetic) -> bool:
    return same(shape, read(choice.rest), arithmetic)


def _value(named: Named, arithmetic: Arithmetic) -> Shape:
    """Returns the value of a name; of a chain a = b = c the last, if the others agree with it."""
    value = named.value
    if not (isinstance(value, Items) and value.kind == "chain"):
        return value
    last = value.parts[-1]
    agree = all(same(last, part, arithmetic) for part in value.parts[:-1])
    return last if agree else value  # a chain is equal to nothing


def _same_named(gold: Named, answer: Named, arithmetic: Arithmetic) -> bool:
    left, right = _value(gold, arithmetic), _value(answer, arithmetic)
    if gold.name == answer.name or (_is_constant(left) and _is_constant(right)):
        return same(left, right, arithmetic)
    if isinstance(left, Formula) and isinstance(right, Formula):
        return _same_relation(_as_relation(gold), _as_relation(answer), arithmetic)
    return False


def _is_constant(shape: Shape) -> bool:
    """Returns whether a value has no variables: then its name does not matter."""
    match shape:
        case Formula():
            return all(symbol in _CONSTANT for symbol in _SYMBOL.findall(shape.text))
        case Items():
            return all(_is_constant(part) for part in shape.parts)
        case _:
            return False


def _as_relation(shape: Shape) -> Relation:
    if isinstance(shape, Named):
        value = shape.value
        return Relation(sign="=", left=shape.name, right=value.text if isinstance(value, Formula) else "")
    assert isinstance(shape, Relation)
    return shape


def _same_relation(gold: Relation, answer: Relation, arithmetic: Arithmetic) -> bool:
    """Two equations are the same when one is a multiple of the other; inequalities, a positive multiple."""
    if gold.sign != answer.sign or not gold.right or not answer.right:
        return False
    sign = arithmetic.proportion(_difference(gold), _difference(answer))
    return sign != 0 if gold.sign == "=" else sign > 0


def _difference(relation: Relation) -> str:
    return f"({relation.left})-({relation.right})"


def _is_identity(relation: Relation, arithmetic: Arithmetic) -> bool:
    """Returns whether both sides are the same value, as in 2 + 3 = 5."""
    return relation.sign == "=" and arithmetic.equal(relation.left, relation.right)


def _same_formula(gold: Formula, answer: Formula, arithmetic: Arithmetic) -> bool:
    if "%" in (gold.unit, answer.unit):
        if gold.unit == answer.unit:
            return arithmetic.equal(gold.text, answer.text)
        if gold.unit and answer.unit:
            return False
        return any(
            arithmetic.equal(left, right)
            for left in percent_readings(gold.text, gold.unit)
            for right in percent_readings(answer.text, answer.unit)
        )
    if {gold.unit, answer.unit} == {"deg", ""} and not arithmetic.equal(gold.text, answer.text):
        left, right = (degrees_in_radians(f.text) if f.unit else f.text for f in (gold, answer))
        return r"\pi" in gold.text + answer.text and arithmetic.equal(left, right)
    return same_unit(gold.unit, answer.unit) and arithmetic.equal(gold.text, answer.text)


def _same_items(gold: Items, answer: Items, arithmetic: Arithmetic) -> bool:
    if len(gold.parts) != len(answer.parts) or "chain" in (gold.kind, answer.kind):
        return False
    left, right = _by_name(gold.parts), _by_name(answer.parts)
    named = left is not None, right is not None
    if all(named):
        if [part.name for part in left or ()] != [part.name for part in right or ()]:
            return False
        return _in_order(left or (), right or (), arithmetic)
    if gold.kind in _ORDERED or answer.kind in _ORDERED or any(named):
        kinds = {gold.kind, answer.kind}
        if len(kinds) > 1 and not ("list" in kinds and "()" in kinds):
            return False
        return _in_order(left or gold.parts, right or answer.parts, arithmetic)
    if "union" in (gold.kind, answer.kind) and gold.kind != answer.kind:
        return False
    return _in_any_order(gold.parts, answer.parts, arithmetic)


def _by_name(parts: Sequence[Shape]) -> list[Named] | None:
    """Returns named parts sorted by name, when all have names of their own."""
    named = [part for part in parts if isinstance(part, Named)]
    distinct = len({part.name for part in named}) == len(parts)
    return sorted(named, key=lambda part: part.name) if distinct else None


def _in_order(gold: Sequence[Shape], answer: Sequence[Shape], arithmetic: Arithmetic) -> bool:
    return len(gold) == len(answer) and all(
        same(left, right, arithmetic) for left, right in zip(gold, answer, strict=True)
    )


def _in_any_order(gold: Sequence[Shape], answer: Sequence[Shape], arithmetic: Arithmetic) -> bool:
    """Pairs the parts greedily, which is enough because being the same is transitive."""
    left_over = list(answer)
    for part in gold:
        partner = next((other for other in left_over if same(part, other, arithmetic)), None)
        if partner is None:
            return False
        left_over.remove(partner)
    return True


def _flat(shape: Shape) -> list[Shape]:
    if isinstance(shape, Matrix):
        return [cell for row in shape.rows for cell in row]
    assert isinstance(shape, Items)
    return list(shape.parts)


def _is_vector(shape: Shape) -> bool:
    if isinstance(shape, Matrix):
        return len(shape.rows) == 1 or all(len(row) == 1 for row in shape.rows)
    return isinstance(shape, Items) and shape.kind == "()"
