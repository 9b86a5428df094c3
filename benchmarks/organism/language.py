"""Problems with written steps, and who errs where: a chain of operations on one digit, modulo 10.

    problem    9 A -5 B *7 C +8
    solution   A 9 -5 = 4 ; so B 4 *7 is 8 , C 8 +8 gives 6 ; # 6

Every word is one token. A solution errs by misconceptions and by noise, and goes on from what it wrote; a
step can be worded in many ways, which change nothing. Every operation is one-to-one (multipliers have an
inverse modulo 10), so a single error always reaches the answer; several may cancel.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.organism.settings import OrganismSettings

DIGITS = tuple("0123456789")
LABELS = tuple("ABCDEFGHIJKLMNOP")  # as many steps as a problem may have
OPERATIONS = {"+": range(1, 10), "-": range(1, 10), "*": (3, 7, 9)}  # sign: operands
EQUALS = ("=", "is", "gives")
FILLERS = ("so", "then", "now")
ENDS = (";", ",")  # of a step
VOCABULARY = (
    *DIGITS,
    *LABELS,
    *(f"{sign}{operand}" for sign, operands in OPERATIONS.items() for operand in operands),
    *EQUALS,
    *FILLERS,
    *ENDS,
    "#",
)

_SHARES = {"+": 0.45, "-": 0.4, "*": 0.15}


def apply(operation: str, digit: int) -> int:
    """Returns the right result.

    >>> apply("*7", 4)
    8
    """
    operand = int(operation[1:])
    match operation[0]:
        case "+":
            return (digit + operand) % 10
        case "-":
            return (digit - operand) % 10
        case _:
            return (digit * operand) % 10


@dataclass(frozen=True, slots=True)
class Problem:
    """A digit to start from and what is done to it, from left to right."""

    start: int
    operations: tuple[str, ...]

    @property
    def question(self) -> str:
        """As it is asked."""
        steps = zip(LABELS, self.operations, strict=False)
        return " ".join([str(self.start), *(f"{label} {operation}" for label, operation in steps)])

    @property
    def answer(self) -> str:
        """The digit that is left at the end."""
        digit = self.start
        for operation in self.operations:
            digit = apply(operation, digit)
        return str(digit)


@dataclass(frozen=True, slots=True)
class Solution:
    """A written solution; `first_wrong_step` counts from 0, None for a clean one."""

    text: str
    first_wrong_step: int | None


def draw_problem(rng: random.Random, settings: OrganismSettings) -> Problem:
    """Returns a random problem."""
    signs = rng.choices([*_SHARES], [*_SHARES.values()], k=rng.randint(*settings.steps))
    return Problem(rng.randrange(10), tuple(f"{sign}{rng.choice(OPERATIONS[sign])}" for sign in signs))


def parse_problem(question: str) -> Problem:
    """Returns the problem that was asked as `question`."""
    words = question.split()
    return Problem(int(words[0]), tuple(words[2::2]))


def longest_solution(settings: OrganismSettings) -> int:
    """Returns how many tokens the longest solution has, its end included."""
    return 7 * settings.steps[1] + 3


def write_solution(
    problem: Problem, rng: random.Random, settings: OrganismSettings, *, right: int | None = None
) -> Solution:
    """Returns a solution with the errors and the free wording of `settings`; step `right` has no error."""
    digit, words, wrong = problem.start, list[str](), list[int]()
    for index, operation in enumerate(problem.operations):
        written = _written_result(operation, digit, rng, settings)
        result = apply(operation, digit) if index == right else written
        if result != apply(operation, digit):
            wrong.append(index)
        words += _worded([LABELS[index], str(digit), operation], str(result), rng, settings)
        digit = result
    return Solution(" ".join([*words, "#", str(digit)]), wrong[0] if wrong else None)


def _written_result(operation: str, digit: int, rng: random.Random, settings: OrganismSettings) -> int:
    right = apply(operation, digit)
    for misconception in settings.misconceptions:
        if misconception.operation == operation:
            return (right + misconception.shift) % 10 if rng.random() < misconception.slip else right
    return (right + rng.randint(1, 9)) % 10 if rng.random() < settings.slip else right


def _worded(said: list[str], result: str, rng: random.Random, settings: OrganismSettings) -> list[str]:
    filler = [rng.choice(FILLERS)] if rng.random() < settings.fillers else []
    equals = rng.choice(EQUALS[1:]) if rng.random() < settings.synonyms else EQUALS[0]
    end = ENDS[1] if rng.random() < settings.synonyms else ENDS[0]
    return [*filler, *said, equals, result, end]


def first_wrong_word(problem: Problem, text: str) -> int | None:
    """Returns the index of the first word of `text` that is not right, None for a right solution.

    A step is its label, the digit so far, the operation asked for and the right result; its wording is free.
    A text that ends too early is wrong behind its end.
    """
    words = text.split()
    digit, at = problem.start, 0
    for index, operation in enumerate(problem.operations):
        result = apply(operation, digit)
        at += words[at : at + 1] in [[filler] for filler in FILLERS]
        for right in ((LABELS[index],), (str(digit),), (operation,), EQUALS, (str(result),), ENDS):
            if at == len(words) or words[at] not in right:
                return at
            at += 1
        digit = result
    for right in ("#", str(digit)):
        if at == len(words) or words[at] != right:
            return at
        at += 1
    return at if at < len(words) else None


def first_wrong_step(problem: Problem, text: str) -> int | None:
    """Returns the index of the step with the first wrong word, None for a right solution.

    An answer that is not the last result counts as an error of a step after the last.
    """
    at = first_wrong_word(problem, text)
    return None if at is None else sum(word in ENDS for word in text.split()[:at])
