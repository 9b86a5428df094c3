"""What the organism reads and writes after an attempt: reflections are right, prompts are turnpoint's own."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.organism.build import distinct_problems, examples
from benchmarks.organism.hindsight import (
    WORDS,
    hindsight_example,
    named_step,
    oracle_reflection,
    record,
    reflection_example,
    told,
)
from benchmarks.organism.language import Problem, first_wrong_step, write_solution
from benchmarks.organism.model import CONTEXT, SOLVE, make_tokenizer, save_untrained
from benchmarks.organism.settings import Lesson, OrganismSettings
from benchmarks.organism.verify import reward_told

from tests.organism.settings import TINY
from turnpoint.branching import texts
from turnpoint.models.loading import load_model
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import Completion, Root
from turnpoint.types import FinishReason, Message, Task, Verdict, float_array, token_array

LOOKING_BACK = Lesson(solutions=4, reflections=3, hindsights=2)
SETTINGS = OrganismSettings(lessons=(LOOKING_BACK,))
EXAMPLE = Problem(9, ("-5", "*7", "+8"))
CLEAN = "A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6"
WRONG = "A 9 -5 = 4 ; B 4 *7 = 2 ; C 2 +8 = 0 ; # 0"
CANCELLED = "A 9 -5 = 4 ; B 4 *7 = 2 ; C 2 +8 = 6 ; # 6"


def task(problem: Problem) -> Task:
    return Task(id="0", messages=(Message(role="user", content=problem.question),), answer=problem.answer)


@pytest.mark.parametrize(
    ("problem", "solution", "reflection"),
    [
        (EXAMPLE, WRONG, "OUTCOME: FAILURE SUMMARY: right A wrong B *7 of 4 gives 8"),
        (EXAMPLE, CLEAN, "OUTCOME: SUCCESS SUMMARY: right A B C key B *7 of 4 gives 8"),
        (EXAMPLE, CANCELLED, "OUTCOME: SUCCESS SUMMARY: right A wrong B *7 of 4 gives 8"),
        (Problem(1, ("+2",)), "A 1 +2 = 3 ; # 3", "OUTCOME: SUCCESS SUMMARY: right A"),
        (Problem(1, ("+2",)), "A 1 +2 = 3 ; # 4", "OUTCOME: FAILURE SUMMARY: right A"),
        (Problem(1, ("+2",)), "", "OUTCOME: FAILURE SUMMARY: right wrong A +2 of 1 gives 3"),
    ],
)
def test_reflections_by_hand(problem: Problem, solution: str, reflection: str) -> None:
    assert oracle_reflection(problem, solution, SETTINGS) == reflection
    assert texts.parse_outcome(reflection) is record(problem, solution).endswith("RIGHT")


def test_a_reflection_names_the_first_wrong_step() -> None:
    rng = random.Random(0)
    for problem in (it for it, _ in zip(distinct_problems(rng, SETTINGS), range(300), strict=False)):
        solution = write_solution(problem, rng, SETTINGS)
        named = named_step(oracle_reflection(problem, solution.text, SETTINGS))
        if solution.first_wrong_step is not None:
            assert named == solution.first_wrong_step


def test_hindsight_makes_the_named_step_right_and_no_other() -> None:
    settings = replace(SETTINGS, slip=0.5)
    rng = random.Random(0)
    errors = {True: 0, False: 0}
    count = 0
    for problem in (it for it, _ in zip(distinct_problems(rng, settings), range(400), strict=False)):
        row = hindsight_example(problem, rng, settings)
        if (named := named_step(row["question"])) is None:
            continue
        steps = re.split("[;,]", row["answer"])
        for index, operation in enumerate(problem.operations):
            digit, result = re.findall(r"(?<= )\d(?= )|\d(?= $)", f" {steps[index].strip()} ")[:2]
            wrong = first_wrong_step(Problem(int(digit), (operation,)), f"A {digit} {operation} = {result} ;")
            errors[index == named] += wrong == 0
            count += index != named
    assert errors[True] == 0
    assert 0.45 < errors[False] / count < 0.65


def test_every_prompt_is_turnpoints_own_in_words_that_are_known(tmp_path: Path) -> None:
    settings = replace(TINY, lessons=(LOOKING_BACK,))
    save_untrained(tmp_path, settings)
    loaded = load_model(tmp_path, device="cpu", dtype="float32")
    renderer = ChatRenderer(loaded.tokenizer, stop_ids=loaded.stop_ids)
    rng = random.Random(3)
    unknown = loaded.tokenizer.unk_token_id
    for problem in (it for it, _ in zip(distinct_problems(rng, SETTINGS), range(50), strict=False)):
        attempt = write_solution(problem, rng, SETTINGS).text
        said, seen = record(problem, attempt), task(problem)
        reflection = oracle_reflection(problem, attempt, SETTINGS)
        asked = renderer.prompt([texts.reflection_request(seen, attempt, said)])
        under = renderer.prompt(seen.messages, hindsight=texts.hindsight(said, reflection))
        for ids in (asked, under, renderer.prompt(seen.messages, hindsight=texts.hindsight(said))):
            assert unknown not in ids.tolist()
            assert loaded.tokenizer.convert_ids_to_tokens(ids.tolist())[-1] == SOLVE
            assert len(ids) + 80 < CONTEXT
        words = len(problem.question.split()) + len(attempt.split()) + 5  # one word for each sentence
        assert len(asked) == words + len(said.split())
        assert len(under) == len(problem.question.split()) + 4 + len(said.split()) + len(reflection.split())
    assert len(set(WORDS)) == len(WORDS)


def test_examples_are_rendered_as_the_rule_renders_them() -> None:
    rng = random.Random(5)
    row = reflection_example(EXAMPLE, rng, SETTINGS)
    attempt = write_solution(EXAMPLE, random.Random(5), SETTINGS).text
    asked = texts.reflection_request(task(EXAMPLE), attempt, record(EXAMPLE, attempt))
    assert row == {
        "question": asked.content,
        "answer": oracle_reflection(EXAMPLE, attempt, SETTINGS),
    }
    under = hindsight_example(EXAMPLE, random.Random(5), SETTINGS)
    hindsight = texts.hindsight(record(EXAMPLE, attempt), oracle_reflection(EXAMPLE, attempt, SETTINGS))
    assert under["question"] == f"{EXAMPLE.question}\n\n{hindsight}"


def test_the_judge_that_tells_reads_like_record_and_reflection() -> None:
    passed, feedback = reward_told(WRONG, task(EXAMPLE))
    completion = Completion(
        token_ids=token_array([1]),
        logprobs=float_array([0.0]),
        policy_version=0,
        finish=FinishReason.STOP,
        text=WRONG,
    )
    root = Root(
        id="r",
        task=task(EXAMPLE),
        prompt_ids=token_array([1]),
        completion=completion,
        verdict=Verdict.scored(0.0, feedback=feedback),
    )
    own = texts.hindsight(record(EXAMPLE, WRONG), oracle_reflection(EXAMPLE, WRONG, SETTINGS))
    assert not passed
    assert texts.hindsight(texts.record(root, most=2000)) == own
    assert feedback == told(EXAMPLE, WRONG, SETTINGS)


def test_a_lesson_is_a_mixture_of_new_problems() -> None:
    settings = replace(TINY, steps=(4, 6))
    rows = examples(LOOKING_BACK, distinct_problems(random.Random(1), settings), random.Random(2), settings)
    kinds = ["[A completed attempt]" in row["question"] for row in rows]
    assert (len(rows), sum(kinds)) == (9, 3)
    assert sum("[Reflection]" in row["question"] for row in rows) == 2
    starts = {row["question"].removeprefix("[Problem]\n").partition("\n")[0] for row in rows}
    assert len(starts) == 9


def test_the_plain_organism_knows_none_of_these_words() -> None:
    assert {*WORDS}.isdisjoint(make_tokenizer(TINY).get_vocab())
    assert {*WORDS} <= {*make_tokenizer(replace(TINY, lessons=(LOOKING_BACK,))).get_vocab()}
