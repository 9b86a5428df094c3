"""Rows of programming problems, in every shape in which tests are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnpoint.tasks.formats import FORMATS, recognise
from turnpoint.tasks.row_format import InvalidRow
from turnpoint.verifiers.code.tests import AssertTest, CallTest, StdinTest, Suite
from turnpoint.verifiers.sandbox.records import FunctionEntry, ScriptEntry

STDIN = {"inputs": ["3\n"], "outputs": ["9\n"]}
CALL = {"fn_name": "sq", "inputs": [[3]], "outputs": [[9]]}
STDIN_ROWS = [{"type": "stdin_stdout", "input": "3\n", "output": "9\n"}]
CALL_ROWS = [{"type": "function_call", "fn_name": "sq", "input": [3], "output": [9]}]


def as_it_is(tests: object) -> object:
    return tests


def read(columns: dict[str, Any]) -> tuple[Suite, str, str]:
    problem = recognise([columns], "rows").read(columns)
    return Suite.from_json(problem.extra["tests"]), problem.messages[0].content, problem.answer


@pytest.mark.parametrize("write", [json.dumps, repr, as_it_is], ids=["json", "python", "as is"])
@pytest.mark.parametrize("tests", [STDIN, STDIN_ROWS])
def test_deepcoder_stdin(tests: object, write: Any) -> None:
    found, prompt, answer = read(
        {"problem": "Square.", "tests": write(tests), "solutions": ["```python\nprint(1)\n```"]}
    )
    assert found == Suite(tests=(StdinTest(input="3\n", output="9\n"),), entry=ScriptEntry())
    assert "standard input" in prompt
    assert answer == "print(1)\n"


@pytest.mark.parametrize("tests", [CALL, CALL_ROWS])
def test_deepcoder_calls(tests: object) -> None:
    found, prompt, _ = read({"problem": "Square.", "tests": json.dumps(tests)})
    assert found.entry == FunctionEntry("sq")
    assert found.tests == (CallTest(arguments=(3,), output=[9], wrapped=True),)
    assert "function sq" in prompt


def test_livecodebench_calls_a_method_with_one_json_value_a_line() -> None:
    tests = [{"input": "[1, 2]\n3", "output": "9", "testtype": "functional"}]
    starter = "class Solution:\n    def sq(self, a, b):"
    row = {
        "problem": "Sq.",
        "tests": json.dumps(tests),
        "metadata": {"func_name": "sq"},
        "starter_code": starter,
    }
    found, prompt, _ = read(row)
    assert found.entry == FunctionEntry("sq", "Solution")
    assert found.tests == (CallTest(arguments=([1, 2], 3), output=9),)
    assert starter in prompt


@pytest.mark.parametrize("write", [json.dumps, as_it_is], ids=["json", "as it is"])
def test_rstar(write: Any) -> None:
    row = {"question": "Sq.", "inputs": write(["3\n"]), "outputs": write(["9\n"]), "func_name": None}
    assert read(row)[0].tests == (StdinTest(input="3\n", output="9\n"),)


def test_mbpp_splits_what_can_be_split() -> None:
    lines = ["assert set(f((1, 2))) == {1}", "assert f([1]) == (1, 2)"]
    found, prompt, answer = read({"text": "Do.", "code": "def f(x): ...", "test_list": lines})
    assert isinstance(found.tests[0], AssertTest)
    assert found.tests[1] == CallTest(arguments=([1],), output=[1, 2])
    assert found.entry == FunctionEntry("f")
    assert lines[0] in prompt
    assert answer == "def f(x): ..."


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ([], "no tests"),
        ("[]", "no tests"),
        ({"inputs": [], "outputs": []}, "no tests"),
        ("{not", "neither JSON nor a Python literal"),
        (7, "neither a list nor an object"),
        ({"inputs": ["1"], "outputs": []}, "not as many outputs"),
        ({"inputs": 3, "outputs": "x"}, "not two lists"),
        ({"inputs": [3], "outputs": ["x"]}, "not text"),
        ([3], "not an object"),
        ([{"type": "junit", "input": "", "output": ""}], "of type 'junit'"),
        ({"fn_name": "a b", "inputs": [[1]], "outputs": [[1]]}, "no Python name"),
        ([{"type": "function_call", "fn_name": "f", "input": [1]}], "no output"),  # not an expected null
        ("{'fn_name': 'f', 'inputs': [[1]], 'outputs': [{1, 2}]}", "what JSON cannot say"),
        ("{'fn_name': 'f', 'inputs': [[b'1']], 'outputs': [1]}", "what JSON cannot say"),
    ],
)
def test_bad_tests_are_refused_with_a_reason(tests: object, reason: str) -> None:
    with pytest.raises(InvalidRow, match=reason):
        FORMATS["deepcoder"].read({"problem": "p", "tests": tests})


def test_an_expected_dictionary_has_the_keys_that_json_gives_it() -> None:
    found, _, _ = read({"problem": "p", "tests": "{'fn_name': 'f', 'inputs': [[1]], 'outputs': [{1: 2}]}"})
    assert found.tests == (CallTest(arguments=(1,), output={"1": 2}, wrapped=True),)


@pytest.mark.parametrize("write", [json.dumps, repr, as_it_is])
def test_mbpp_imports_stand_before_the_assertions(write: Any) -> None:
    row = {
        "text": "Do.",
        "test_list": ["assert math.floor(f(1)) == 1"],
        "test_imports": write(["import math"]),
    }
    assert read(row)[0].tests == (AssertTest(source="import math\nassert math.floor(f(1)) == 1\n"),)


@pytest.mark.parametrize("imports", [5, {"import": "math"}, "import math"])
def test_mbpp_imports_of_another_type_are_refused(imports: object) -> None:
    with pytest.raises(InvalidRow, match="test_imports"):
        FORMATS["mbpp"].read({"text": "Do.", "test_list": ["assert f(1) == 1"], "test_imports": imports})


@pytest.mark.parametrize(
    ("test", "class_name", "reason"),
    [
        ({"kind": "call", "arguments": [1], "output": 1, "tolerance": None}, None, "tolerance of a test"),
        ({"kind": "call", "arguments": [1], "output": 1}, 7, "class of a test"),
        ({"kind": "call", "arguments": [1]}, None, "an output"),
    ],
)
def test_a_suite_that_cannot_be_read_says_why(test: dict[str, Any], class_name: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Suite.from_json({"function": "f", "class": class_name, "tests": [test]})


def test_a_suite_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        Suite.from_json("[" * 100_000)
