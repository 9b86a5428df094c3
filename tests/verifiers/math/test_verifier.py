"""The pairs that people send to graders, from one thread and from eight; faults; the self-check."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cases.adversarial_pairs import DIFFERENT, SAME
from turnpoint.errors import VerifierError
from turnpoint.types import Message, Task, Verdict
from turnpoint.verifiers import MathVerifier
from turnpoint.verifiers.math.verifier import changed_answer

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in Path("tests/cases/math_pairs.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    with MathVerifier() as shared:
        shared.grade(gold="x+1", response=r"\boxed{1+x}")
        yield shared


def task(answer: str) -> Task:
    return Task(id="t", messages=(Message(role="user", content="?"),), answer=answer)


def box(answer: str) -> str:
    return rf"So it is $\boxed{{{answer}}}$."


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gold'][:20]}|{case['response'][-25:]}")
def test_cases(verifier: MathVerifier, case: dict[str, object]) -> None:
    verdict = verifier.grade(gold=str(case["gold"]), response=str(case["response"]))
    assert (verdict.valid, verdict.reward) == (True, float(bool(case["match"]))), verdict.reason
    assert verdict.parts["timed_out"] == 0


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_same(verifier: MathVerifier, gold: str, answer: str) -> None:
    assert verifier.grade(gold=gold, response=box(answer)).reward == 1.0


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(verifier: MathVerifier, gold: str, answer: str) -> None:
    verdict = verifier.grade(gold=gold, response=box(answer))
    assert verdict.valid
    assert verdict.reward == 0.0
    assert verdict.parts["timed_out"] == 0


def test_the_cases_from_eight_threads(verifier: MathVerifier) -> None:
    def grade(case: dict[str, Any]) -> float | None:
        return verifier.grade(gold=case["gold"], response=case["response"]).reward

    with ThreadPoolExecutor(8) as threads:
        rewards = list(threads.map(grade, CASES * 2))
    assert rewards == [float(case["match"]) for case in CASES * 2]


def test_the_cases_at_once_in_one_event_loop(verifier: MathVerifier) -> None:
    async def scenario() -> list[Verdict]:
        return await asyncio.gather(
            *(verifier.verify(task(case["gold"]), case["response"]) for case in CASES)
        )

    assert [verdict.reward for verdict in asyncio.run(scenario())] == [float(case["match"]) for case in CASES]


@pytest.mark.parametrize(
    ("gold", "response", "reason"),
    [
        ("12", r"\boxed{12}", "string"),
        ("12", r"\boxed{13}", "string"),
        ("x+1", r"\boxed{1+x}", "math-verify"),
        ("x+1", r"\boxed{x}", "math-verify"),
        ("1", r"\boxed{10^{10^{10}}}", "refused: a tower of powers"),
        ("1", "I do not know.", "no answer"),
    ],
)
def test_the_reason_says_how_it_was_decided(
    verifier: MathVerifier, gold: str, response: str, reason: str
) -> None:
    assert verifier.grade(gold=gold, response=response).reason == reason


def test_feedback_names_both_answers(verifier: MathVerifier) -> None:
    assert verifier.grade(gold="12", response=r"\boxed{12}").feedback == "Correct."
    wrong = verifier.grade(gold="12", response=r"\boxed{13}").feedback
    assert wrong == "The answer given is 13. The reference answer is 12."
    assert (
        verifier.grade(gold="12", response="").feedback == "No answer was found. The reference answer is 12."
    )


@pytest.mark.parametrize(
    "gold", ["", " ", r"\frac{1}{", "5}", r"\frac{}{}", "3+", "???", r"\foo{3}", "10^{10^{10}}"]
)
def test_an_unreadable_reference_is_invalid_and_never_a_reward(verifier: MathVerifier, gold: str) -> None:
    verdict = verifier.grade(gold=gold, response=r"\boxed{x+7}")
    assert (verdict.valid, verdict.reward) == (False, None)
    assert "reference answer" in verdict.reason


@pytest.mark.parametrize(
    "response",
    ["x" * 1_000_000, "\x00" * 1000, "\ud800", r"\boxed{" + "(" * 900_000 + "}", "1 " * 500_000 + "7"],
)
def test_strange_text_is_wrong_and_fast(verifier: MathVerifier, response: str) -> None:
    start = time.monotonic()
    assert verifier.grade(gold="12", response=response).reward == 0.0
    assert time.monotonic() - start < 3  # a bound on hanging, not on speed


def test_a_slow_answer_is_wrong_and_counted_and_the_next_ones_are_served() -> None:
    with MathVerifier(timeout=0.001, workers=1) as verifier:  # too short for any algebra
        for _ in range(3):
            verdict = verifier.grade(gold="x+1", response=box("1+x"))
            assert (verdict.valid, verdict.reward, verdict.reason) == (True, 0.0, "timed out after 0.001 s")
            assert verdict.parts["timed_out"] == 1.0
        assert verifier.grade(gold="12", response=box("12")).reward == 1.0


def test_kill_9_of_all_workers_costs_no_verdict() -> None:
    with MathVerifier(timeout=10.0) as verifier:
        assert verifier.grade(gold="x+1", response=box("1+x")).reward == 1.0
        for _ in range(3):
            for pid in verifier._pool.pids():  # type: ignore[reportPrivateUsage]
                os.kill(pid, signal.SIGKILL)
            assert verifier.grade(gold="x+1", response=box("1+x")).reward == 1.0


def test_a_closed_verifier_raises_where_it_needs_a_worker() -> None:
    verifier = MathVerifier()
    verifier.close()
    verifier.close()
    assert verifier.grade(gold="12", response=box("12")).reward == 1.0
    with pytest.raises(VerifierError, match="closed"):
        verifier.grade(gold="x+1", response=box("1+x"))


GOLDS = [
    *dict.fromkeys(gold for gold, _ in [*SAME, *DIFFERENT]),
    *dict.fromkeys(str(case["gold"]) for case in CASES),
]


def test_the_self_check_accepts_every_reference_of_the_pairs(verifier: MathVerifier) -> None:
    async def scenario() -> list[Verdict]:
        return await asyncio.gather(*(verifier.self_check(task(gold)) for gold in GOLDS))

    verdicts = zip(GOLDS, asyncio.run(scenario()), strict=True)
    assert [(gold, verdict.reason) for gold, verdict in verdicts if not verdict.valid] == []


@pytest.mark.parametrize("gold", ["", r"\frac{1}{", "3+", "10^{10^{10}}", "x" * 600])
def test_the_self_check_reports_what_cannot_be_graded(verifier: MathVerifier, gold: str) -> None:
    verdict = asyncio.run(verifier.self_check(task(gold)))
    assert not verdict.valid
    assert "reference answer" in verdict.reason


@pytest.mark.parametrize(
    ("gold", "changed"),
    [
        ("12", "13"),
        (r"\frac{3}{4}", r"\frac{4}{4}"),
        ("x_{1}+5", "x_{1}+6"),
        ("(B)", "A"),
        ("Monday", r"\text{not monday}"),
        (r"\pi", r"\pi+1"),
    ],
)
def test_a_changed_answer_looks_like_the_reference(gold: str, changed: str) -> None:
    assert changed_answer(gold) == changed
