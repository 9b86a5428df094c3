"""The organism's language: what is right is known, what is wrong is found, wording changes nothing."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from benchmarks.organism.language import (
    LABELS,
    OPERATIONS,
    VOCABULARY,
    Problem,
    apply,
    draw_problem,
    first_wrong_step,
    longest_solution,
    parse_problem,
    write_solution,
)
from benchmarks.organism.settings import Misconception, OrganismSettings
from benchmarks.organism.verify import reward

from turnpoint.types import Message, Task

NOISY = OrganismSettings()
CLEAN = replace(NOISY, misconceptions=(), slip=0.0)
PLAIN = replace(CLEAN, fillers=0.0, synonyms=0.0)
EXAMPLE = Problem(9, ("-5", "*7", "+8"))


def draws(settings: OrganismSettings, count: int, seed: int = 0) -> list[tuple[Problem, str, int | None]]:
    rng = random.Random(seed)
    problems = [draw_problem(rng, settings) for _ in range(count)]
    solutions = [write_solution(problem, rng, settings) for problem in problems]
    return [
        (problem, solution.text, solution.first_wrong_step)
        for problem, solution in zip(problems, solutions, strict=True)
    ]


def rewarded(problem: Problem, text: str) -> bool:
    messages = (Message(role="user", content=problem.question),)
    rewarded, record = reward(text, Task(id="0", messages=messages, answer=problem.answer))
    assert record == f"answer {problem.answer} verdict {'RIGHT' if rewarded else 'WRONG'}"
    return rewarded


def test_by_hand() -> None:
    assert EXAMPLE.question == "9 A -5 B *7 C +8"
    assert EXAMPLE.answer == "6"  # 9 - 5 = 4, 4 * 7 = 28, 8 + 8 = 16
    solution = write_solution(EXAMPLE, random.Random(0), PLAIN)
    assert solution.text == "A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6"
    assert solution.first_wrong_step is None
    assert apply("-7", 3) == 6


def test_every_operation_is_one_to_one() -> None:
    for sign, operands in OPERATIONS.items():
        for operand in operands:
            assert {apply(f"{sign}{operand}", digit) for digit in range(10)} == set(range(10))


@pytest.mark.parametrize("settings", [PLAIN, CLEAN])
def test_clean_solutions_are_right_in_any_wording(settings: OrganismSettings) -> None:
    for problem, text, wrong in draws(settings, 300):
        assert wrong is None
        assert first_wrong_step(problem, text) is None
        assert rewarded(problem, text)
        assert parse_problem(problem.question) == problem
        assert set(f"{problem.question} {text}".split()) <= set(VOCABULARY)
        assert len(text.split()) + 1 <= longest_solution(settings)


def test_wording_is_free_and_changes_no_answer() -> None:
    texts = {write_solution(EXAMPLE, random.Random(seed), CLEAN).text for seed in range(300)}
    assert len(texts) > 250  # (4 fillers * 3 words for = * 2 ends) ** 3 = 13,824
    assert all(first_wrong_step(EXAMPLE, text) is None and rewarded(EXAMPLE, text) for text in texts)
    plain = {write_solution(EXAMPLE, random.Random(seed), PLAIN).text for seed in range(50)}
    assert len(plain) == 1


def test_the_first_wrong_step_is_found_where_it_was_planted() -> None:
    found: set[int | None] = set()
    for problem, text, wrong in draws(replace(NOISY, slip=0.1), 500):
        assert first_wrong_step(problem, text) == wrong
        assert rewarded(problem, text) or wrong is not None
        found.add(wrong)
    assert {None, 0, 1, 2, 3, 4, 5} <= found


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6", None),
        ("then A 9 -5 is 4 , B 4 *7 gives 8 ; so C 8 +8 = 6 ; # 6", None),
        ("A 9 -5 = 3 ; B 3 *7 = 1 ; C 1 +8 = 9 ; # 9", 0),  # wrong result, right from there
        ("A 9 -5 = 4 ; B 3 *7 = 1 ; C 1 +8 = 9 ; # 9", 1),  # wrong digit taken over
        ("A 9 -5 = 4 ; B 4 *3 = 2 ; C 2 +8 = 0 ; # 0", 1),  # wrong operation
        ("A 9 -5 = 4 ; C 4 *7 = 8 ; C 8 +8 = 6 ; # 6", 1),  # wrong label
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 5", 3),  # wrong answer
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; D 6 +1 = 7 ; # 7", 3),  # a step too many
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; # 8", 2),  # a step too few
        ("A 9 -5 = 4 ; B 4 4 = 8 ; C 8 +8 = 6 ; # 6", 1),
        ("so so A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6", 0),
        ("A -5 9 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ; # 6", 0),
        ("", 0),
        ("; ; ;", 0),
        ("A 9 -5 = 4 ; B 4 *7 = 8 ; C 8 +8 = 6 ;", 3),
    ],
)
def test_what_counts_as_wrong(text: str, step: int | None) -> None:
    assert first_wrong_step(EXAMPLE, text) == step


def test_errors_come_as_often_as_set() -> None:
    settings = replace(
        NOISY, misconceptions=(Misconception(operation="+8", shift=3, slip=0.9),), slip=0.05, steps=(6, 6)
    )
    rng = random.Random(1)
    problem = Problem(0, ("+8", "-1", "+8", "*3", "+2", "-4"))
    counts = dict.fromkeys(("+8", "other"), 0)
    for _ in range(2000):
        steps = write_solution(problem, rng, replace(settings, fillers=0, synonyms=0)).text.split(" ; ")
        for operation, step in zip(problem.operations, steps, strict=False):
            digit, result = int(step.split()[1]), int(step.split()[4])
            error = (result - apply(operation, digit)) % 10
            if operation == "+8":
                counts["+8"] += bool(error)
                assert error in (0, 3)
            else:
                counts["other"] += bool(error)
    # 4,000 and 8,000 draws: standard errors 0.005 and 0.0025
    assert counts["+8"] / 4000 == pytest.approx(0.9, abs=0.02)
    assert counts["other"] / 8000 == pytest.approx(0.05, abs=0.01)


def test_problems_are_as_long_as_set_and_no_longer_than_labels_reach() -> None:
    lengths = {len(problem.operations) for problem, _, _ in draws(replace(CLEAN, steps=(2, 5)), 200)}
    assert lengths == {2, 3, 4, 5}
    assert len(set(LABELS)) == len(LABELS) >= CLEAN.steps[1]
    assert len(set(VOCABULARY)) == len(VOCABULARY)


@pytest.mark.parametrize(
    ("completion", "right"),
    [("A 9 -5 = 4 ; # 6", True), ("# 6", True), ("# 5", False), ("6", False), ("# 6 6", False), ("", False)],
)
def test_only_the_answer_is_rewarded(completion: str, right: bool) -> None:
    assert rewarded(EXAMPLE, completion) is right


def test_the_same_seed_draws_the_same() -> None:
    for left, right in itertools.pairwise([draws(NOISY, 20), draws(NOISY, 20)]):
        assert left == right
    assert draws(NOISY, 20, seed=1) != draws(NOISY, 20)
