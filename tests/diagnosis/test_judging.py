"""Gold answers of the whole dataset, and whether a wrong one is told from them."""

from __future__ import annotations

import asyncio

import pytest

from tests.diagnosis.subjects import silent
from turnpoint.config import FunctionVerifierConfig, MathVerifierConfig, NoVerifierConfig
from turnpoint.diagnosis import Check, Status
from turnpoint.diagnosis.judging import check_gold_answers, check_isolation, check_wrong_answers
from turnpoint.tasks import Dataset
from turnpoint.tasks.dataset import ReadReport
from turnpoint.types import Message, Task, Verdict
from turnpoint.verifiers import MathVerifier, Unjudged
from turnpoint.verifiers.sandbox import Isolation


def dataset(*answers: str, name: str = "rows") -> Dataset:
    tasks = tuple(
        Task(id=f"{name}/{index}", messages=(Message(role="user", content=f"{index}?"),), answer=answer)
        for index, answer in enumerate(answers)
    )
    report = ReadReport(source=name, format="plain", rows=len(tasks), kept=len(tasks))
    return Dataset(name=name, tasks=tasks, report=report)


def gold(*parts: Dataset) -> tuple[list[Dataset], Check]:
    with MathVerifier(timeout=10.0, workers=1) as verifier:
        return asyncio.run(check_gold_answers(parts, verifier, MathVerifierConfig(), silent()))


def test_all_parts_of_the_dataset_are_looked_at() -> None:
    usable, found = gold(dataset("1", "2", "3"), dataset("4", name="held out"))
    assert [len(part.tasks) for part in usable] == [3, 1]
    assert found.status is Status.OK
    assert "all 4 pass" in found.text


def test_some_that_do_not_pass_are_counted_by_reason_with_the_first() -> None:
    usable, found = gold(dataset("1", "", "3", ""))
    assert [task.answer for task in usable[0].tasks] == ["1", "3"]
    assert found.status is Status.WARNING
    assert "2 of 4 left out" in found.text
    assert "first: rows/1" in found.text


def test_a_dataset_of_which_none_passes_is_refused_and_comes_back_whole() -> None:
    usable, found = gold(dataset("", ""), dataset("4"))
    assert found.status is Status.FAILED
    assert "accepts none of the gold answers" in found.text
    assert [len(part.tasks) for part in usable] == [2, 1]


FUNCTION = FunctionVerifierConfig(kind="function", path="rewards.py:f")


class Function:
    """Stands for a user's function."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def verify(self, task: Task, completion: str) -> Verdict:
        match self._kind:
            case "equal":
                return Verdict.scored(float(completion == task.answer))
            case "same":
                return Verdict.scored(1.0)
            case "strict":
                return Verdict.scored(1.0) if completion == task.answer else Verdict.invalid("no")
            case "nothing":
                return Verdict.scored(0.0)
            case "marked":
                return Verdict.scored(float(completion == f"# {task.answer}"))
            case "distance":
                return Verdict.scored(-float(abs(int(completion) - int(task.answer))))
            case "raises":
                return Verdict.invalid("AttributeError: 'Task' object has no attribute 'anser'")
            case "raises at 3":
                return Verdict.invalid("boom") if "3" in completion else Verdict.scored(1.0)
            case _:  # right about even answers only
                return Verdict.scored(float(completion == task.answer or int(task.answer) % 2))

    async def self_check(self, task: Task) -> Verdict:
        return await self.verify(task, task.answer)


@pytest.mark.parametrize(
    ("kind", "status", "count"),
    [
        ("equal", Status.OK, 4),
        ("distance", Status.OK, 4),
        ("even", Status.WARNING, 2),
        ("same", Status.WARNING, 0),
    ],
)
def test_a_function_must_tell_another_answer_from_the_right_one(
    kind: str, status: Status, count: int
) -> None:
    found = wrong_answers(kind, "1", "2", "3", "4")
    assert found.status is status
    assert f"earns less in {count} of 4 problems" in found.text


def wrong_answers(kind: str, *answers: str) -> Check:
    return asyncio.run(check_wrong_answers(dataset(*answers).tasks, Function(kind), FUNCTION))


def gold_answers(kind: str, *answers: str) -> Check:
    _, found = asyncio.run(check_gold_answers([dataset(*answers)], Function(kind), FUNCTION, silent()))
    return found


def test_a_function_that_gives_all_answers_the_same_does_not_look_at_the_right_one() -> None:
    assert "does not look at task.answer" in wrong_answers("same", "1", "2", "3").text


@pytest.mark.parametrize("kind", ["nothing", "marked"])
def test_of_a_function_that_gives_a_bare_gold_answer_nothing_no_more_is_said(kind: str) -> None:
    gold = gold_answers(kind, "1", "2", "3")
    assert gold.status is Status.WARNING
    assert "gold answers alone earn 0 in 3 of 3: the function wants more than the bare answer" in gold.text
    wrong = wrong_answers(kind, "1", "2", "3")
    assert wrong.status is Status.WARNING
    assert "nothing can be said about right and wrong ones" in wrong.text
    assert "task.answer" not in wrong.text


def test_a_function_that_gives_gold_answers_a_reward_says_so() -> None:
    found = gold_answers("equal", "1", "2", "3")
    assert (found.status, found.text) == (Status.OK, "all 3 earn more than 0 from your function")


def test_a_function_that_raises_is_counted_as_that_and_accused_of_nothing_else() -> None:
    every = gold_answers("raises", "1", "2")
    assert every.status is Status.FAILED
    assert "2 of 2 left out: AttributeError" in every.text
    wrong = wrong_answers("raises", "1", "2")
    assert wrong.status is Status.WARNING
    assert "100 % of answers invalid: AttributeError" in wrong.text
    assert "nothing can be said" in wrong.text
    assert "does not look" not in wrong.text
    some = wrong_answers("raises at 3", "1", "2", "3", "4")  # right at 3, and wrong at 2
    assert "25 % of answers invalid: boom (2)" in some.text
    assert "of 2 problems" in some.text


def test_a_wrong_answer_that_is_not_judged_is_not_one_that_earns_less() -> None:
    found = wrong_answers("strict", "1", "2")
    assert found.status is Status.WARNING
    assert "50 % of answers invalid: no (2)" in found.text


def test_equal_answers_cannot_be_told_apart() -> None:
    found = wrong_answers("same", "1", "1")
    assert "not tried" in found.text


def test_other_verifiers_check_wrong_answers_themselves() -> None:
    found = asyncio.run(check_wrong_answers(dataset("1").tasks, Function("same"), MathVerifierConfig()))
    assert found.status is Status.OK


def test_without_a_judge_nothing_is_asked() -> None:
    part, nobody = dataset("1"), Unjudged()
    usable, found = asyncio.run(check_gold_answers([part], nobody, NoVerifierConfig(kind="none"), silent()))
    assert usable == [part]
    assert found.text.endswith("nobody judges")
    wrong = asyncio.run(check_wrong_answers(part.tasks, nobody, NoVerifierConfig(kind="none")))
    assert wrong.text.endswith("nobody judges")
    verdict = asyncio.run(nobody.verify(part.tasks[0], "anything"))
    assert (verdict.valid, verdict.reward) == (True, 0.0)


def test_less_than_full_isolation_is_a_warning() -> None:
    assert check_isolation(Isolation.FULL, described="all").status is Status.OK
    assert check_isolation(Isolation.SYSCALLS, described="files").status is Status.WARNING
