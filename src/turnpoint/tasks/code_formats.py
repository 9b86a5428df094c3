"""Row formats of programming problems: prompts that say how a program is entered, and its tests.

    deepcoder  problem, tests (solutions, starter_code, metadata.func_name)   taco, primeintellect, lcbv5
    rstar      question, inputs, outputs (starter_code, func_name, class_name)
    humaneval  prompt, entry_point, test (canonical_solution)
    mbpp       text or prompt, test_list (code, test_setup_code, test_imports)

Tests may be lists and objects, or texts with JSON or Python literals. They end under `tests` of a task's
metadata, in the form of `turnpoint.verifiers.code.tests`; a reference program is the task's answer.

Sources: the dataset cards and loaders of agentica-org/DeepCoder-Preview-Dataset, microsoft/rStar-Coder,
openai/human-eval and google-research-datasets/mbpp.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from turnpoint.tasks.row_format import InvalidRow, Problem, RowFormat, has, whole_text
from turnpoint.tasks.rows import Columns
from turnpoint.types import Json, Message
from turnpoint.verifiers.code.asserts import tests_of_asserts, tests_of_check
from turnpoint.verifiers.code.extract import last_block
from turnpoint.verifiers.code.tests import CallTest, StdinTest, Suite, Test
from turnpoint.verifiers.sandbox.records import FunctionEntry, ScriptEntry

_SCRIPT = "Write a Python program that reads from standard input and prints the answer."
_FENCED = "Put the whole program into one ```python block at the end."


def _deepcoder(columns: Columns) -> Problem:
    read = _literal(columns.get("tests"), "tests")
    name, kind = None, "input"
    if isinstance(read, Mapping):
        fields = cast("Mapping[str, Any]", read)
        name = fields.get("fn_name")
        pairs = _pairs(fields.get("inputs"), fields.get("outputs"))
    elif isinstance(read, list):
        rows = [_row(row) for row in cast("list[object]", read)]
        kinds = {str(row.get("type", row.get("testtype"))) for row in rows}
        if len(kinds) > 1:
            raise InvalidRow("tests are of several types")
        kind = kinds.pop() if kinds else "stdin"
        if kind not in ("stdin_stdout", "function_call", "stdin", "functional"):
            raise InvalidRow(f"tests are of type {kind[:40]!r}")
        if kind in ("function_call", "functional"):
            about = columns.get("metadata") or "{}"
            about = _row(_literal(about, "metadata"))
            name = (rows[0].get("fn_name") if rows else None) or about.get("func_name")
            if not name:
                raise InvalidRow("tests call a function, and no fn_name or func_name says which")
        if not all("input" in row and "output" in row for row in rows):
            raise InvalidRow("a test has no input or no output")  # a missing one is not an expected null
        pairs = [(row["input"], row["output"]) for row in rows]
    else:
        raise InvalidRow(f"tests are a {type(read).__name__}, neither a list nor an object")
    starter = str(columns.get("starter_code") or "")
    return _problem(
        columns,
        "problem",
        pairs,
        function=name,
        class_name=None,
        starter=starter,
        wrapped=kind != "functional",
    )


def _rstar(columns: Columns) -> Problem:
    inputs, outputs = _literal(columns.get("inputs"), "inputs"), _literal(columns.get("outputs"), "outputs")
    if isinstance(inputs, Mapping):  # {"inputs": [...], "outputs": [...]} in either column
        inputs = cast("Mapping[str, Any]", inputs).get("inputs")
    if isinstance(outputs, Mapping):
        outputs = cast("Mapping[str, Any]", outputs).get("outputs")
    return _problem(
        columns,
        "question",
        _pairs(inputs, outputs),
        function=columns.get("func_name") or None,
        class_name=columns.get("class_name") or None,
        starter=str(columns.get("starter_code") or ""),
        wrapped=False,
    )


def _problem(
    columns: Columns,
    prompt: str,
    pairs: list[tuple[Any, Any]],
    *,
    function: object,
    class_name: object,
    starter: str,
    wrapped: bool,
) -> Problem:
    if function is not None and not (isinstance(function, str) and function.isidentifier()):
        raise InvalidRow("the function's name is no Python name")
    if class_name is not None and not (isinstance(class_name, str) and class_name.isidentifier()):
        raise InvalidRow("the class's name is no Python name")
    if function is None:
        entry, tests = ScriptEntry(), [_stdin_test(*pair) for pair in pairs]
        how = _SCRIPT
    else:
        owner = class_name or ("Solution" if "class Solution" in starter else None)
        entry = FunctionEntry(function, owner)
        tests = [_call_test(*pair, wrapped=wrapped) for pair in pairs]
        how = f"Write a Python {f'class {owner} with a method' if owner else 'function'} {function}."
    if starter.strip():
        how += f" Start from this code:\n```python\n{starter.strip()}\n```"
    question = whole_text(_text(columns, prompt), prompt)
    return _with_tests(
        f"{question}\n\n{how}\n{_FENCED}",
        _tests(tests, entry),
        answer=_first_solution(columns.get("solutions")),
        used={prompt, "tests", "inputs", "outputs", "solutions"},
    )


def _humaneval(columns: Columns) -> Problem:
    prompt, name = _text(columns, "prompt"), _text(columns, "entry_point")
    if not name.isidentifier():
        raise InvalidRow("entry_point is no Python name")
    try:
        tests = tests_of_check(_text(columns, "test"), name)
    except ValueError as error:
        raise InvalidRow(str(error)) from error
    preamble = prompt.partition(f"def {name}(")[0]
    body = columns.get("canonical_solution")
    return _with_tests(
        f"Complete this Python function.\n```python\n{prompt.strip()}\n```\n"
        f"Put the complete function into one ```python block at the end.",
        _tests(tests, FunctionEntry(name), preamble),
        answer=f"{prompt}{body}" if isinstance(body, str) and body.strip() else "",
        used={"prompt", "canonical_solution", "test"},
    )


def _mbpp(columns: Columns) -> Problem:
    lines = _literal(columns.get("test_list"), "test_list")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in cast("list[object]", lines)):
        raise InvalidRow("test_list is no list of texts")
    about = columns.get("test_imports")
    imports: Any = [] if about is None else _literal(about, "test_imports")
    if not isinstance(imports, list):
        raise InvalidRow("test_imports is no list of texts")
    lines_before = [*map(str, cast("list[object]", imports)), str(columns.get("test_setup_code") or "")]
    setup = "\n".join(lines_before).strip()
    try:
        name, tests = tests_of_asserts(cast("list[str]", lines), setup)
    except ValueError as error:
        raise InvalidRow(str(error)) from error
    prompt = "text" if has(columns, "text") else "prompt"
    code = columns.get("code")
    return _with_tests(
        f"{whole_text(_text(columns, prompt), prompt)}\n\nThe function must pass tests such as:\n"
        f"```python\n{lines[0]}\n```\n{_FENCED}",
        _tests(tests, FunctionEntry(name)),
        answer=code if isinstance(code, str) else "",
        used={prompt, "code", "test_list", "test_setup_code", "test_imports"},
    )


CODE_FORMATS: Mapping[str, RowFormat] = {
    form.name: form
    for form in (
        RowFormat(
            name="deepcoder",
            needs="problem, tests",
            fits=lambda columns: has(columns, "problem", "tests"),
            read=_deepcoder,
        ),
        RowFormat(
            name="rstar",
            needs="question, inputs, outputs",
            fits=lambda columns: has(columns, "question", "inputs", "outputs"),
            read=_rstar,
        ),
        RowFormat(
            name="humaneval",
            needs="prompt, entry_point, test",
            fits=lambda columns: has(columns, "prompt", "entry_point", "test"),
            read=_humaneval,
        ),
        RowFormat(
            name="mbpp",
            needs="text or prompt, and test_list",
            fits=lambda columns: (
                has(columns, "test_list") and (has(columns, "text") or has(columns, "prompt"))
            ),
            read=_mbpp,
        ),
    )
}


# --- values -------------------------------------------------------------------------------------


def _with_tests(prompt: str, tests: Suite, *, answer: str, used: set[str]) -> Problem:
    return Problem(
        messages=(Message(role="user", content=prompt),),
        answer=answer,
        used=frozenset(used),
        extra={"tests": tests.to_json()},
    )


def _tests(tests: Sequence[Test], entry: ScriptEntry | FunctionEntry, preamble: str = "") -> Suite:
    if not tests:
        raise InvalidRow("no tests")
    return Suite(tests=tuple(tests), entry=entry, preamble=preamble)


def _literal(value: Any, name: str) -> Any:
    """Returns what a text says as JSON or as a Python literal, anything but a text as it is; all as JSON."""
    if value is None:
        raise InvalidRow(f"{name} is null or missing")
    read = value.tolist() if type(value).__module__ == "numpy" else value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
        try:
            read = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise InvalidRow(f"{name} is neither JSON nor a Python literal") from error
    try:
        return json.loads(json.dumps(read))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRow(f"{name} holds what JSON cannot say, such as a set or bytes") from error


def _row(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRow(f"a test is a {type(value).__name__}, not an object")
    return cast("Mapping[str, Any]", value)


def _pairs(inputs: object, outputs: object) -> list[tuple[Any, Any]]:
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple):
        raise InvalidRow("inputs and outputs are not two lists")
    given, expected = cast("list[Any]", inputs), cast("list[Any]", outputs)
    if len(given) != len(expected):
        raise InvalidRow("not as many outputs as inputs")
    return list(zip(given, expected, strict=True))


def _stdin_test(given: Any, expected: Any) -> StdinTest:
    return StdinTest(input=_lines(given, "input"), output=_lines(expected, "output"))


def _lines(value: object, name: str) -> str:
    """Returns a text; TACO also writes lists of lines."""
    if isinstance(value, str):
        return value
    lines = cast("list[object]", value) if isinstance(value, list) else []
    if isinstance(value, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(map(str, lines))
    raise InvalidRow(f"the {name} of a test is a {type(cast(object, value)).__name__}, not text")


def _call_test(given: object, expected: Any, *, wrapped: bool) -> CallTest:
    """Returns a call; arguments written as text are one JSON value a line, and so is then the output."""
    if isinstance(given, list | tuple):
        return CallTest(arguments=tuple(cast("list[Json]", given)), output=expected, wrapped=wrapped)
    if not isinstance(given, str):
        raise InvalidRow(f"the arguments of a test are a {type(given).__name__}, neither a list nor text")
    try:
        arguments = tuple(json.loads(line) for line in given.split("\n") if line.strip())
        output = json.loads(expected) if isinstance(expected, str) else expected
    except (ValueError, RecursionError) as error:
        raise InvalidRow("the arguments or the output of a test are no JSON values, one a line") from error
    return CallTest(arguments=arguments, output=output, wrapped=wrapped)


def _first_solution(value: Any) -> str:
    """Returns the first reference program, out of its fence; empty without one."""
    solutions: Any = (
        _literal(value, "solutions") if isinstance(value, str) and value.startswith("[") else value
    )
    first = cast("list[object]", solutions)[0] if isinstance(solutions, list | tuple) and solutions else None
    return last_block(first) or first if isinstance(first, str) else ""


def _text(columns: Columns, name: str) -> str:
    value = columns.get(name)
    if not isinstance(value, str):
        raise InvalidRow(f"{name} is a {type(value).__name__}, not text")
    return value
