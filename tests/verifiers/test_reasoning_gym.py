"""The generators' own scorers, on rows they made."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from turnpoint.errors import RecipeError
from turnpoint.types import Message, Task
from turnpoint.verifiers import ReasoningGymVerifier
from turnpoint.verifiers.reasoning_gym import gym_answer

pytest.importorskip("reasoning_gym")


def make_task(name: str, **options: Any) -> Task:
    gym: Any = importlib.import_module("reasoning_gym")
    row = gym.create_dataset(name, size=1, seed=3, **options)[0]
    message = Message(role="user", content=row["question"])
    entry = json.loads(json.dumps(row["metadata"]))
    return Task(id=f"{name}/0", messages=(message,), answer=row["answer"], metadata={"entry": entry})


@pytest.fixture(scope="module")
def verifier() -> Iterator[ReasoningGymVerifier]:
    with ReasoningGymVerifier("chain_sum", workers=1, timeout=30.0) as shared:
        yield shared


def test_right_wrong_and_partly_right(verifier: ReasoningGymVerifier) -> None:
    task = make_task("chain_sum")
    verdicts = [
        verifier.grade(task=task, completion=text.format(task.answer)) for text in ("{}", "x", "{} or so")
    ]
    assert [verdict.reward for verdict in verdicts[:2]] == [1.0, 0.0]
    assert verdicts[2].reward == pytest.approx(len(task.answer) / len(f"{task.answer} or so"))
    assert verdicts[0].feedback == "Correct."
    assert verdicts[1].feedback == f"The answer given is x. The reference answer is {task.answer}."


def test_a_scorer_that_needs_the_entry() -> None:
    task = make_task("countdown")
    with ReasoningGymVerifier("countdown", workers=1, timeout=30.0) as verifier:
        assert verifier.grade(task=task, completion=f"<answer>{task.answer}</answer>").reward == 1.0
        assert verifier.grade(task=task, completion="<answer>1</answer>").reward != 1.0
        assert asyncio.run(verifier.self_check(task)).valid


def test_the_self_check(verifier: ReasoningGymVerifier) -> None:
    task = make_task("chain_sum")
    assert asyncio.run(verifier.self_check(task)).reward == 1.0
    spoiled = Task(id=task.id, messages=task.messages, answer="", metadata=task.metadata)
    assert "reference answer" in asyncio.run(verifier.self_check(spoiled)).reason


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<think>5</think> <answer> 7 </answer>", "7"),
        ("<answer>1</answer> no <answer>2\n3</answer>", "2\n3"),
        (r"so \boxed{7}", "7"),
        ("The answer is 7.", "7"),
        (" 7\n", "7"),
        ("1 0\n0 1", "1 0\n0 1"),
    ],
)
def test_the_answer_is_taken_out(completion: str, answer: str) -> None:
    assert gym_answer(completion) == answer


def test_an_unknown_generator_is_refused_with_its_neighbours() -> None:
    with pytest.raises(RecipeError, match=r"chain_sums.*no such generator; near it: chain_sum"):
        ReasoningGymVerifier("chain_sums")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # type: ignore[reportUnknownLambdaType]
    with pytest.raises(RecipeError, match=r"turnpoint\[quickstart\]"):
        ReasoningGymVerifier("chain_sum")
