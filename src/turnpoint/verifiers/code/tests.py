"""Tests of programs: the one JSON form in which a task keeps them, and which of them are run.

    {"function": null | name, "class": null | name, "preamble": source, "tests": [
        {"kind": "stdin",  "input": text, "output": text},
        {"kind": "call",   "arguments": [...], "output": value, "wrapped": bool, "tolerance": number},
        {"kind": "assert", "source": statements}]}

`preamble` stands before the program: imports and helpers that the prompt gave. An output that is `wrapped`
may also be the only item of its list, as TACO writes the outputs of functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from turnpoint.types import Json
from turnpoint.verifiers.sandbox.records import (
    AssertInput,
    CallInput,
    Entry,
    FunctionEntry,
    Input,
    ScriptEntry,
    StdinInput,
)

Choose: TypeAlias = Literal["longest", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StdinTest:
    """What a script reads and what it must print."""

    input: str
    output: str

    def given(self) -> Input:
        """Returns what the program is given."""
        return StdinInput(self.input)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTest:
    """What a function is called with and what it must return."""

    arguments: tuple[Json, ...]
    output: Json
    wrapped: bool = False
    tolerance: float = 0.0  # the test's own, absolute

    def given(self) -> Input:
        """Returns what the program is given."""
        return CallInput(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertTest:
    """Statements that must reach their end; they run beside the program, which can cheat them."""

    source: str

    def given(self) -> Input:
        """Returns what the program is given."""
        return AssertInput(self.source)


Test: TypeAlias = "StdinTest | CallTest | AssertTest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of one problem, and how its programs are entered; raises ValueError without a test."""

    tests: tuple[Test, ...]
    entry: Entry = field(default_factory=ScriptEntry)
    preamble: str = ""

    def __post_init__(self) -> None:
        if not self.tests:
            raise ValueError("no tests")

    def to_json(self) -> dict[str, Json]:
        """Returns the form above."""
        function = self.entry if isinstance(self.entry, FunctionEntry) else None
        return {
            "function": function and function.name,
            "class": function and function.class_name,
            "preamble": self.preamble,
            "tests": [_test_to_json(test) for test in self.tests],
        }

    @staticmethod
    def from_json(value: object) -> Suite:
        """Returns what `to_json` wrote, also as a JSON text; raises ValueError, in one line, otherwise."""
        try:
            tree = json.loads(value) if isinstance(value, str) else value
        except RecursionError as error:
            raise ValueError("tests are nested too deeply") from error
        if not isinstance(tree, Mapping):
            raise ValueError(f"tests are a {type(tree).__name__}, not an object with tests")
        fields = cast("Mapping[str, Any]", tree)
        rows = fields.get("tests")
        if not isinstance(rows, list | tuple):
            raise ValueError(f"tests.tests is a {type(rows).__name__}, not a list")
        name, owner = fields.get("function"), fields.get("class")
        owner = None if owner is None else _text(owner, "class")
        entry = FunctionEntry(_text(name, "function"), owner) if name is not None else ScriptEntry()
        return Suite(
            tests=tuple(_test(row, entry) for row in cast("list[object]", rows)),
            entry=entry,
            preamble=_text(fields.get("preamble", ""), "preamble"),
        )


def _test_to_json(test: Test) -> dict[str, Json]:
    match test:
        case StdinTest():
            return {"kind": "stdin", "input": test.input, "output": test.output}
        case CallTest():
            return {
                "kind": "call",
                "arguments": list(test.arguments),
                "output": test.output,
                "wrapped": test.wrapped,
                "tolerance": test.tolerance,
            }
        case AssertTest():
            return {"kind": "assert", "source": test.source}


def _test(row: object, entry: Entry) -> Test:
    fields = cast("Mapping[str, Any]", row if isinstance(row, Mapping) else {})
    match fields.get("kind"), isinstance(entry, FunctionEntry):
        case "stdin", False:
            return StdinTest(
                input=_text(fields.get("input"), "input"), output=_text(fields.get("output"), "output")
            )
        case "call", True:
            arguments = fields.get("arguments")
            tolerance = fields.get("tolerance", 0.0)
            if not isinstance(arguments, list | tuple) or "output" not in fields:
                raise ValueError("a test of kind call needs a list of arguments, and an output")
            if not isinstance(tolerance, int | float):
                raise ValueError(f"tolerance of a test is a {type(tolerance).__name__}, not a number")
            return CallTest(
                arguments=tuple(cast("list[Json]", arguments)),
                output=fields["output"],
                wrapped=bool(fields.get("wrapped", False)),
                tolerance=float(tolerance),
            )
        case "assert", _:
            return AssertTest(source=_text(fields.get("source"), "source"))
        case kind, _:
            raise ValueError(f"a test of kind {kind!r} (stdin: without function; call: with one; or assert)")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} of a test is a {type(value).__name__}, not text")
    return value


def select(tests: Sequence[Test], *, most: int, choose: Choose) -> list[Test]:
    """Returns at most `most` of `tests`, in their order: the first, or those with the longest inputs.

    The longest inputs are DeepCoder's choice: they tell slow programs apart. Of equal lengths the first.
    """
    if choose == "first" or len(tests) <= most:
        return list(tests[:most])
    by_length = sorted(range(len(tests)), key=lambda index: -_length(tests[index]))
    return [tests[index] for index in sorted(by_length[:most])]


def _length(test: Test) -> int:
    match test:
        case StdinTest():
            return len(test.input)
        case CallTest():
            return len(json.dumps(test.arguments))
        case AssertTest():
            return len(test.source)
