"""The judge of programs: run in the sandbox, compared here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias, cast

from turnpoint.errors import RecipeError, SandboxError, VerifierError
from turnpoint.types import Json, Task, Verdict
from turnpoint.verifiers.code.compare import same_output, same_value
from turnpoint.verifiers.code.extract import last_block
from turnpoint.verifiers.code.report import Result, feedback
from turnpoint.verifiers.code.tests import AssertTest, CallTest, Choose, StdinTest, Suite, Test, select
from turnpoint.verifiers.function import check_path
from turnpoint.verifiers.sandbox.records import FunctionEntry, Isolation, Limits, Outcome, Program, Run
from turnpoint.verifiers.sandbox.sandbox import Sandbox
from turnpoint.verifiers.workers import Reply, Status, WorkerPool, WorkerSettings

TESTS = "tests"  # the key of Task.metadata
NO_TESTS_PASSED = "turnpoint: a wrong answer"

Reward: TypeAlias = Literal["fraction", "all"]


class CodeVerifier:
    r"""Rewards the last fenced block of a completion with the share of tests it passes, or 1 for all, else 0.

    The program runs in `Sandbox` and never sees what it should answer: outputs and returned values are
    compared here, numbers within `tolerance`; `checker`, a function `file.py:function` of yours,
    (input, expected, got) -> bool, is asked about what is not equal, where several answers are right. Only
    assertions that are no plain calls run beside the program, which could cheat them. At most `most` tests
    are run, those that `choose` says.

    No block, code that is no Python, and programs that fail or exceed `limits` earn 0 or what they passed;
    tests that cannot be read and faults of the sandbox or the checker give an invalid verdict. Raises
    RecipeError when this host cannot give the isolation.

    >>> square = Suite(tests=(StdinTest(input="3\n", output="9\n"),))
    >>> with CodeVerifier(workers=1, isolation=Isolation.LIMITS) as verifier:
    ...     verifier.grade(tests=square, response="```python\nprint(int(input()) ** 2)\n```").reward
    1.0
    """

    def __init__(
        self,
        *,
        reward: Reward = "fraction",
        most: int = 15,
        choose: Choose = "longest",
        tolerance: float = 0.0,
        checker: str | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
        isolation: Isolation = Isolation.FULL,
    ) -> None:
        self._reward: Reward = reward
        self._most = most
        self._choose: Choose = choose
        self._tolerance = tolerance
        self.isolation = isolation
        self._checker = None if checker is None else _open_checker(checker)
        try:
            self._sandbox = Sandbox(limits=limits or Limits(), workers=workers, isolation=isolation)
        except RecipeError:
            self._close_checker()
            raise

    def describe(self) -> str:
        """Returns the isolation in force, in words."""
        return self._sandbox.describe()

    def grade(self, *, tests: Suite, response: str) -> Verdict:
        """Returns the verdict on `response`; blocks, from any thread."""
        with ThreadPoolExecutor(1) as thread:  # the caller's may have a loop of its own
            return thread.submit(asyncio.run, self._judge(tests, response)).result()

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the verdict on `completion`, as `grade` does, without blocking."""
        tests = _tests(task)
        return tests if isinstance(tests, Verdict) else await self._judge(tests, completion)

    async def self_check(self, task: Task) -> Verdict:
        """Returns valid when a wrong program fails and the reference, if there is one, passes all tests."""
        tests = _tests(task)
        if isinstance(tests, Verdict):
            return tests
        wrong = await self._run(tests, wrong_program(tests))
        if not wrong.valid:
            return wrong
        if wrong.parts["passed"] == wrong.parts["tests"]:
            return Verdict.invalid("a program that only gives a wrong answer passes the tests")
        if not task.answer:
            return Verdict.scored(1.0, reason="no reference program; a wrong one fails")
        right = await self._run(tests, task.answer)
        if right.valid and right.parts["passed"] < right.parts["tests"]:
            return Verdict.invalid(f"the reference program does not pass: {right.reason}")
        return right

    async def _judge(self, tests: Suite, response: str) -> Verdict:
        source = last_block(response)
        return _no_block(len(self._chosen(tests))) if source is None else await self._run(tests, source)

    async def _run(self, tests: Suite, source: str) -> Verdict:
        chosen = self._chosen(tests)
        try:
            runs = await self._sandbox.run(_program(tests, source), [test.given() for test in chosen])
            results = [await self._result(test, run) for test, run in zip(chosen, runs, strict=True)]
        except (SandboxError, _CheckerError) as error:
            return Verdict.invalid(str(error))
        return self._conclude(results)

    def _chosen(self, tests: Suite) -> list[Test]:
        return select(tests.tests, most=self._most, choose=self._choose)

    def _conclude(self, results: Sequence[Result]) -> Verdict:
        passed, total = sum(result.passed for result in results), len(results)
        reward = passed / total if self._reward == "fraction" else float(passed == total)
        slow = sum(result.run.outcome in (Outcome.TIMEOUT, Outcome.CPU) for result in results)
        return Verdict.scored(
            reward,
            reason=f"{passed} of {total} tests",
            feedback=feedback(results),
            parts={"passed": passed, "tests": total, "timed_out": slow, "no_block": 0.0},
        )

    async def _result(self, test: Test, run: Run) -> Result:
        passed = _passes(test, run, self._tolerance)
        if not passed and self._checker is not None and (asked := _question(test, run)) is not None:
            passed = _answer(await self._checker.call_async(*asked))
        return Result(test=test, run=run, passed=passed)

    def close(self) -> None:
        """Ends all processes."""
        self._sandbox.close()
        self._close_checker()

    def _close_checker(self) -> None:
        if self._checker is not None:
            self._checker.close()

    def __enter__(self) -> CodeVerifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def wrong_program(tests: Suite) -> str:
    """Returns a program of the asked form that answers every input with the same wrong text."""
    answer = repr(NO_TESTS_PASSED)
    if not isinstance(tests.entry, FunctionEntry):
        return f"print({answer})\n"
    function = f"def {tests.entry.name}(*arguments):\n    return {answer}\n"
    if tests.entry.class_name is None:
        return function
    inside = "".join(f"    {line}\n" for line in function.splitlines())
    return f"class {tests.entry.class_name}:\n{inside}"


def _program(tests: Suite, source: str) -> Program:
    return Program(f"{tests.preamble}\n{source}" if tests.preamble else source, tests.entry)


def _tests(task: Task) -> Suite | Verdict:
    if TESTS not in task.metadata:
        return Verdict.invalid(f"{task.id} has no tests")
    try:
        return Suite.from_json(task.metadata[TESTS])
    except ValueError as error:
        return Verdict.invalid(f"the tests of {task.id} cannot be read: {error}")


def _no_block(total: int) -> Verdict:
    return Verdict.scored(
        0.0,
        reason="no code block",
        feedback="No closed code block was found after the reasoning.",
        parts={"passed": 0.0, "tests": total, "timed_out": 0.0, "no_block": 1.0},
    )


def _passes(test: Test, run: Run, tolerance: float) -> bool:
    if run.outcome is not Outcome.DONE:
        return False
    match test:
        case StdinTest():
            return same_output(test.output, run.stdout, tolerance=tolerance)
        case CallTest():
            accepted = [test.output]
            if test.wrapped and isinstance(test.output, list | tuple) and len(test.output) == 1:
                accepted.append(cast("Sequence[Json]", test.output)[0])
            return any(
                same_value(each, run.value, tolerance=tolerance, absolute=test.tolerance) for each in accepted
            )
        case AssertTest():
            return True


# --- the checker --------------------------------------------------------------------------------


class _CheckerError(VerifierError):
    """The checker failed; says nothing about the program."""


def _open_checker(path: str) -> WorkerPool:
    check_path(path)
    settings = WorkerSettings(
        factory="turnpoint.verifiers._user_function:load_checker", arguments=[path], timeout=10.0
    )
    pool = WorkerPool(settings, workers=len(os.sched_getaffinity(0)))
    try:
        pool.wait_until_ready()
    except VerifierError as error:
        pool.close()
        raise RecipeError(f"checker {path}: {error}") from error
    return pool


def _question(test: Test, run: Run) -> tuple[Json, Json, Json] | None:
    """Returns what the checker is asked: (input, expected, got); None where there is no output to judge."""
    if run.outcome is not Outcome.DONE:
        return None
    match test:
        case StdinTest():
            return test.input, test.output, run.stdout
        case CallTest():
            return list(test.arguments), test.output, run.value
        case AssertTest():
            return None


def _answer(reply: Reply) -> bool:
    if reply.status is not Status.DONE or not isinstance(reply.value, bool):
        raise _CheckerError(f"the checker {reply.reason or 'returned neither True nor False'}")
    return reply.value
