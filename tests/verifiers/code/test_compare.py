"""What counts as equal, which block is the program, which tests are run."""

from __future__ import annotations

from typing import Any

import pytest

from turnpoint.types import Json
from turnpoint.verifiers.code.asserts import tests_of_check as read_check
from turnpoint.verifiers.code.compare import same_output, same_value
from turnpoint.verifiers.code.extract import last_block
from turnpoint.verifiers.code.tests import AssertTest, CallTest, StdinTest, Suite, select


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "same"),
    [
        ("9\n", "9", 0, True),
        ("1 2\n\n3", "1\t2 \n3\n\n", 0, True),
        ("1 2", "1\n2", 0, False),
        ("1", "1.0", 0, True),
        ("0.1", "0.10000001", 0, False),
        ("0.1", "0.10000001", 1e-6, True),
        ("1000000", "1000000.5", 1e-6, True),
        ("YES", "yes", 0, False),
        ("", "", 0, True),
        ("1", "", 0, False),
        ("1", "nan", 1.0, False),
        ("1" * 5000, "1" * 4999 + "2", 0, False),
    ],
)
def test_outputs(expected: str, got: str, tolerance: float, same: bool) -> None:
    assert same_output(expected, got, tolerance=tolerance) is same


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ([1, [2, "a"]], [1.0, [2, "a"]], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (0.3, 0.1 + 0.2, True),
        (1, "1", False),
        (None, 0, False),
        (10**400, 10**400 + 1, False),
    ],
)
def test_values(expected: Json, got: Json, same: bool) -> None:
    assert same_value(expected, got, tolerance=1e-9) is same


def test_last_block() -> None:
    assert last_block("```python\na\n```\n<think>```\nb\n```</think>") is None
    assert last_block("<think>```\nb\n```</think>```python\nc\n```") == "c\n"
    assert last_block("<think>```python\nc\n```") is None
    assert last_block("print(1)") is None


def test_selection_keeps_order() -> None:
    tests = [StdinTest(input="x" * length, output="") for length in (1, 9, 3, 9)]
    assert select(tests, most=2, choose="longest") == [tests[1], tests[3]]
    assert select(tests, most=2, choose="first") == tests[:2]


def test_check_becomes_calls() -> None:
    source = (
        "def check(candidate):\n    assert candidate([1]) == (2, 3)\n"
        "    assert abs(candidate(1) - 0.5) < 1e-6\n"
        "    assert candidate((1,)) == 1\n    assert True, 'x'\n"
    )
    first, second, third = read_check(source, "f")
    assert first == CallTest(arguments=([1],), output=[2, 3])
    assert second == CallTest(arguments=(1,), output=0.5, tolerance=1e-6)
    assert isinstance(third, AssertTest)  # JSON has no tuples to call it with


def test_tests_survive_json_and_are_never_empty() -> None:
    tests = Suite(tests=(StdinTest(input="", output="1"), AssertTest(source="x")), preamble="import re\n")
    assert Suite.from_json(tests.to_json()) == tests
    unreadable: list[Any] = [
        {"tests": []},
        {"tests": None},
        [],
        {"tests": [{"kind": "call", "arguments": []}]},
    ]
    for bad in [*unreadable, "7"]:
        with pytest.raises(ValueError, match="test"):
            Suite.from_json(bad)
