"""What a policy is told about the tests its program failed, in a bounded number of characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.verifiers.code.tests import AssertTest, CallTest, StdinTest, Test
from turnpoint.verifiers.sandbox.records import Outcome, Run

_SHOWN_TESTS = 3
_SHOWN = 200  # characters of an input, an expected output, what came


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One test, what the program did, and whether that passes."""

    test: Test
    run: Run
    passed: bool


def feedback(results: Sequence[Result]) -> str:
    """Returns the count of tests passed and the first failures with input, expected and got."""
    failed = [(number, result) for number, result in enumerate(results, start=1) if not result.passed]
    lines = [f"Passed {len(results) - len(failed)} of {len(results)} tests."]
    for number, result in failed[:_SHOWN_TESTS]:
        if result.run.outcome is Outcome.NOT_RUN and number == 1:
            return f"{lines[0]}\nThe program did not run: {_cut(result.run.error)}"
        lines.append(f"Test {number} failed.\n{_what(result)}")
    return "\n".join(lines)


def _what(result: Result) -> str:
    run = result.run
    match result.test:
        case StdinTest() as test:
            given, expected, got = test.input.strip(), test.output.strip(), run.stdout.strip()
        case CallTest() as test:
            given, expected, got = (
                json.dumps(test.arguments)[1:-1],
                json.dumps(test.output),
                json.dumps(run.value),
            )
        case AssertTest() as test:
            ended = run.error or run.outcome.value
            return f"Assertion: {_cut(test.source.strip().splitlines()[-1])}\nGot: {_cut(ended)}"
    if run.outcome is not Outcome.DONE:
        got = f"{run.outcome.value}: {run.error}" if run.error else run.outcome.value
    return f"Input: {_cut(given)}\nExpected: {_cut(expected)}\nGot: {_cut(got)}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} [... cut]"
