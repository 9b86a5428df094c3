"""Assertions as calls with expected values, where that says the same: the comparison is then outside.

`assert f(1, [2]) == 3` and `assert abs(f(1) - 0.5) < 1e-6` become a call and a value when all is literal and
JSON can say the arguments as they are; a list returned for an expected tuple passes. What cannot be rewritten
stays an assertion.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterable
from typing import Any, cast

from turnpoint.types import Json
from turnpoint.verifiers.code.tests import AssertTest, CallTest, Test


def tests_of_check(source: str, function: str) -> tuple[Test, ...]:
    """Returns the tests in HumanEval's `check(candidate)`: one per assertion; one where they hang together.

    Raises ValueError when `source` is no Python or has no function check.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("the test is no Python") from error
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if len(found) != 1 or len(found[0].args.args) != 1:
        raise ValueError("the test has no function check(candidate)")
    check = found[0]
    candidate = check.args.args[0].arg
    alone = all(isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) for node in check.body)
    if not alone:
        return (AssertTest(source=f"{source}\ncheck({function})\n"),)
    imports = [ast.unparse(node) for node in check.body if not isinstance(node, ast.Assert)]
    before = "\n".join([source, *imports, f"{candidate} = {function}"])
    asserts = (node for node in check.body if isinstance(node, ast.Assert))
    return tuple(_tests(asserts, candidate, before))


def tests_of_asserts(lines: Iterable[str], setup: str) -> tuple[str, tuple[Test, ...]]:
    """Returns the function that MBPP's assertions are about, and a test per assertion.

    Raises ValueError when a line is no assertion, or no function is called.
    """
    nodes: list[ast.Assert] = []
    for line in lines:
        try:
            body = ast.parse(line).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError("an assertion is no Python") from error
        if len(body) != 1 or not isinstance(body[0], ast.Assert):
            raise ValueError("a line of the tests is no assertion")
        nodes.append(body[0])
    names = [name for node in nodes if (name := _called(node)) is not None]
    if not names:
        raise ValueError("the assertions call no function")
    return names[0], tuple(_tests(nodes, names[0], setup))


def _called(node: ast.Assert) -> str | None:
    """Returns the function that an assertion is about: of nested calls the innermost that is no builtin."""
    calls = [
        call.func.id
        for call in ast.walk(node.test)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    own = [name for name in calls if not hasattr(builtins, name)]
    return own[0] if own else None


def _tests(asserts: Iterable[ast.Assert], candidate: str, before: str) -> list[Test]:
    tests: list[Test] = []
    for node in asserts:
        if isinstance(node.test, ast.Constant) and node.test.value:
            continue  # `assert True` tests nothing
        tests.append(
            _call_test(node.test, candidate) or AssertTest(source=f"{before}\n{ast.unparse(node)}\n")
        )
    return tests


def _call_test(test: ast.expr, candidate: str) -> CallTest | None:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return _pair(left, right, candidate, 0.0) or _pair(right, left, candidate, 0.0)
        case ast.Compare(
            left=ast.Call(
                func=ast.Name(id="abs") | ast.Attribute(value=ast.Name(id="math"), attr="fabs"),
                args=[ast.BinOp(left=left, op=ast.Sub(), right=right)],
                keywords=[],
            ),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[ast.Constant(value=float(within))],
        ):
            return _pair(left, right, candidate, within) or _pair(right, left, candidate, within)
        case _:
            return None


def _pair(call: ast.expr, value: ast.expr, candidate: str, tolerance: float) -> CallTest | None:
    if not isinstance(call, ast.Call) or call.keywords:
        return None
    if not (isinstance(call.func, ast.Name) and call.func.id == candidate):
        return None
    try:
        arguments: list[Any] = [ast.literal_eval(argument) for argument in call.args]
        expected: Any = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    if not all(map(_same_in_json, arguments)) or not _sayable(expected):
        return None
    output = cast("Json", json.loads(json.dumps(expected)))
    return CallTest(arguments=tuple(arguments), output=output, tolerance=tolerance)


def _same_in_json(value: Any) -> bool:
    """Whether JSON gives back the value itself: no tuples, sets, bytes, or keys that are no text."""
    if isinstance(value, list):
        return all(map(_same_in_json, cast("list[Any]", value)))
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return all(isinstance(key, str) for key in items) and all(map(_same_in_json, items.values()))
    return value is None or isinstance(value, bool | int | float | str)


def _sayable(value: Any) -> bool:
    """As `_same_in_json`, but tuples may become lists."""
    if isinstance(value, tuple | list):
        return all(map(_sayable, cast("list[Any]", value)))
    return _same_in_json(value)
