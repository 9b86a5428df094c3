"""What an organism reads and writes after an attempt: the record, a reflection, and what hindsight changes.

    record       answer 6 verdict WRONG
    reflection   OUTCOME: FAILURE SUMMARY: right A wrong B *7 of 4 gives 8
                 OUTCOME: SUCCESS SUMMARY: right A B C key B *7 of 4 gives 8

The prompts are turnpoint's own (`branching.texts`); the organism's tokenizer has one token for each of their
sentences. A reflection names the first wrong step and its right result; that of a clean attempt names the
first step with a misconceived operation, the one that could have gone wrong. A solution under hindsight is as
noisy as any other, and only the named step is right in it for sure: what hindsight changes is what the
reflection says, not how careful the organism is (otherwise every reflection would localise errors).
"""

from __future__ import annotations

import random
import re

from benchmarks.organism.language import (
    LABELS,
    Problem,
    apply,
    first_wrong_step,
    write_solution,
)
from benchmarks.organism.settings import OrganismSettings
from turnpoint.branching import texts
from turnpoint.types import Message, Task

RIGHT, WRONG, SUCCESS, FAILURE = "RIGHT", "WRONG", "SUCCESS", "FAILURE"
_NAMED = re.compile(r"(?:wrong|key) ([A-P])\b")


def _request(question: str, attempt: str, record: str) -> str:
    task = Task(id="", messages=(Message(role="user", content=question),), answer="")
    return texts.reflection_request(task, attempt, record).content


_INSTRUCTION = _request("", "", "").partition("[Record]\n")[2].strip()
SENTENCES = {  # of turnpoint's prompts: the word that stands for each
    _INSTRUCTION: "<reflect>",
    texts.hindsight("").partition("\n")[0]: "<before>",
    "[Problem]": "<problem>",
    "[A completed attempt]": "<attempt>",
    "[Record]": "<record>",
    "[Reflection]": "<reflection>",
    texts.CUT_OFF: "<cut>",
}
WORDS = (
    *SENTENCES.values(),
    *("answer", "verdict", RIGHT, WRONG, "OUTCOME:", SUCCESS, FAILURE, "SUMMARY:"),
    *("right", "wrong", "key", "of"),
)


def record(problem: Problem, solution: str) -> str:
    """Returns what the judge says of a solution: the expected answer, and whether it was found."""
    found = solution.split()[-2:] == ["#", problem.answer]
    return f"answer {problem.answer} verdict {RIGHT if found else WRONG}"


def oracle_reflection(problem: Problem, solution: str, settings: OrganismSettings) -> str:
    """Returns the reflection that names the right step."""
    outcome = SUCCESS if record(problem, solution).endswith(RIGHT) else FAILURE
    wrong = first_wrong_step(problem, solution)
    count = len(problem.operations)
    misconceived = {it.operation for it in settings.misconceptions}
    risky = [index for index, operation in enumerate(problem.operations) if operation in misconceived]
    words = ["OUTCOME:", outcome, "SUMMARY:", "right", *LABELS[: count if wrong is None else wrong]]
    if wrong is not None and wrong < count:
        words += ["wrong", *_said(problem, wrong)]
    elif wrong is None and risky:
        words += ["key", *_said(problem, risky[0])]
    return " ".join(words)


def _said(problem: Problem, index: int) -> list[str]:
    digit = problem.start
    for operation in problem.operations[:index]:
        digit = apply(operation, digit)
    operation = problem.operations[index]
    return [LABELS[index], operation, "of", str(digit), "gives", str(apply(operation, digit))]


def named_step(reflection: str) -> int | None:
    """Returns the index of the step that a reflection names; None when it names none.

    >>> named_step("OUTCOME: FAILURE SUMMARY: right A B wrong C *7 of 4 gives 8")
    2
    """
    found = _NAMED.search(reflection)
    return None if found is None else LABELS.index(found[1])


def reflection_example(problem: Problem, rng: random.Random, settings: OrganismSettings) -> dict[str, str]:
    """Returns an attempt with what the judge said of it, and the reflection."""
    attempt = write_solution(problem, rng, settings).text
    question = _request(problem.question, attempt, record(problem, attempt))
    return {"question": question, "answer": oracle_reflection(problem, attempt, settings)}


def hindsight_example(problem: Problem, rng: random.Random, settings: OrganismSettings) -> dict[str, str]:
    """Returns a problem with what is known of an attempt, and a further solution."""
    attempt = write_solution(problem, rng, settings).text
    reflection = oracle_reflection(problem, attempt, settings)
    told = texts.hindsight(record(problem, attempt), reflection)
    solution = write_solution(problem, rng, settings, right=named_step(reflection))
    return {"question": f"{problem.question}\n\n{told}", "answer": solution.text}


def told(problem: Problem, solution: str, settings: OrganismSettings) -> str:
    """Returns record and oracle's reflection as one feedback, which reads like a record and a reflection."""
    return with_reflection(record(problem, solution), oracle_reflection(problem, solution, settings))


def with_reflection(record: str, reflection: str) -> str:
    """Returns a feedback under which hindsight reads like `record` and `reflection`."""
    return texts.hindsight(record, reflection).removeprefix(texts.hindsight(""))
