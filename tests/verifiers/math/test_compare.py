"""Shapes and their comparison, on numbers alone; what needs algebra is left undecided, never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.verifiers.math.clean import clean
from turnpoint.verifiers.math.compare import ExactNumbers, Undecided, same
from turnpoint.verifiers.math.shape import Choice, Formula, Items, Matrix, Named, Relation, Shape, Words, read


def shape(text: str) -> Shape:
    return read(clean(text))


def number(text: str) -> Formula:
    return Formula(text=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", number("5")),
        ("x=5", Named(name="x", value=number("5"))),
        ("1,2", Items(kind="list", parts=(number("1"), number("2")))),
        ("[0,1)", Items(kind="[)", parts=(number("0"), number("1")))),
        (r"\{1,2\}", Items(kind="set", parts=(number("1"), number("2")))),
        ("1<x<3", Items(kind="()", parts=(number("1"), number("3")))),
        ("3>x>1", Items(kind="()", parts=(number("1"), number("3")))),
        (r"x\ge 2", Items(kind="[)", parts=(number("2"), number(r"\infty")))),
        ("x+y=1", Relation(sign="=", left="x+y", right="1")),
        (r"\textbf{(B)}\ 7", Choice(letter="B", rest="7")),
        (r"\text{No Solution}", Words(text="no solution")),
        (r"\begin{matrix}1&2\end{matrix}", Matrix(rows=((number("1"), number("2")),))),
    ],
)
def test_shapes(text: str, expected: Shape) -> None:
    assert shape(text) == expected


NUMBERS = st.integers(-20, 20).map(str)
TUPLES = st.lists(NUMBERS, min_size=2, max_size=4)


@given(TUPLES)
def test_sets_forget_the_order_and_tuples_keep_it(parts: list[str]) -> None:
    mixed = parts[::-1]
    as_set, as_tuple = rf"\{{{','.join(parts)}\}}", f"({','.join(parts)})"
    assert same(shape(as_set), shape(rf"\{{{','.join(mixed)}\}}"), ExactNumbers())
    assert same(shape(as_tuple), shape(f"({','.join(mixed)})"), ExactNumbers()) == (parts == mixed)


@given(TUPLES)
def test_a_longer_list_is_another_list(parts: list[str]) -> None:
    assert not same(shape(", ".join(parts)), shape(", ".join([*parts, parts[0]])), ExactNumbers())


def test_numbers_do_not_decide_about_formulas() -> None:
    with pytest.raises(Undecided):
        same(shape("x+1"), shape("1+x"), ExactNumbers())
