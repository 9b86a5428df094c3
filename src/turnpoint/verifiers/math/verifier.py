"""The judge of mathematical answers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnpoint.types import Task, Verdict
from turnpoint.verifiers.math.clean import LONGEST, clean
from turnpoint.verifiers.math.compare import ExactNumbers, Undecided, same
from turnpoint.verifiers.math.extract import extract_answer
from turnpoint.verifiers.math.limits import refusal
from turnpoint.verifiers.math.shape import Choice, Words, is_closed, read
from turnpoint.verifiers.workers import Reply, Status, WorkerPool, WorkerSettings

_FIRST_NUMBER = re.compile(r"(?<![_{0-9])[0-9]+(?![0-9]*\}?_)|(?<=[^_]\{)[0-9]+")
_SHOWN = 200  # characters of an answer in feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Two answers that need computer algebra."""

    gold: str  # cleaned
    answer: str  # cleaned
    written_gold: str
    written_answer: str


class MathVerifier:
    r"""Gives 1 to a completion whose answer equals the reference mathematically, else 0.

    The last `\boxed{...}` after `</think>` counts, else "Answer: ...", else the last number. Equality is
    exact: no decimal equals a root, 0.3333 is not 1/3. Numbers and equal spellings are decided here in
    microseconds; the rest in killable workers within `timeout` seconds of wall clock. An answer that takes
    longer is wrong and counted in `parts["timed_out"]`; a reference that cannot be read gives an invalid
    verdict. `reason` says how it was decided: string, math-verify, refused, timed out or no answer.

    It does not judge the way to the answer, solve equations, convert units, or accept approximations.

    >>> with MathVerifier() as verifier:
    ...     verifier.grade(gold=r"\frac{1}{2}", response=r"So it is $\boxed{0.5}$.").reward
    1.0
    """

    def __init__(self, timeout: float = 2.0, workers: int = 2) -> None:
        self._pool = WorkerPool(
            WorkerSettings(factory="turnpoint.verifiers.math.symbolic:grader", timeout=timeout),
            workers=workers,
        )
        self._retries = workers  # a death is seldom the answer's fault, and all workers may have been killed

    def grade(self, *, gold: str, response: str) -> Verdict:
        """Returns the verdict on `response`; safe from any thread. Raises VerifierError without workers."""
        decided = _decide(gold, response)
        if isinstance(decided, Verdict):
            return decided
        reply = self._pool.call(decided.gold, decided.answer)
        for _ in range(self._retries):
            if reply.status is Status.DIED:
                reply = self._pool.call(decided.gold, decided.answer)
        return _conclude(decided, reply)

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the verdict on `completion`, as `grade` does."""
        decided = _decide(task.answer, completion)
        if isinstance(decided, Verdict):
            return decided
        reply = await self._pool.call_async(decided.gold, decided.answer)
        for _ in range(self._retries):
            if reply.status is Status.DIED:
                reply = await self._pool.call_async(decided.gold, decided.answer)
        return _conclude(decided, reply)

    async def self_check(self, task: Task) -> Verdict:
        """Returns valid when the reference passes and a changed one fails; else invalid with the reason."""
        right = await self.verify(task, rf"\boxed{{{task.answer}}}")
        if not right.valid:
            return right
        if right.reward != 1.0:
            return Verdict.invalid(f"the reference answer {task.answer!r} does not pass: {right.reason}")
        changed = changed_answer(task.answer)
        wrong = await self.verify(task, rf"\boxed{{{changed}}}")
        if not wrong.valid:
            return wrong
        if wrong.reward != 0.0 or wrong.parts["timed_out"]:
            return Verdict.invalid(f"{changed!r} for {task.answer!r} is not told apart: {wrong.reason}")
        return right

    def close(self) -> None:
        """Ends the workers."""
        self._pool.close()

    def __enter__(self) -> MathVerifier:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def changed_answer(gold: str) -> str:
    r"""Returns a wrong answer that looks like `gold`: its first number plus one, another letter, "not" it.

    >>> changed_answer(r"\frac{3}{4}")
    '\\frac{4}{4}'
    """
    shape = read(clean(gold)) if is_closed(gold) and not refusal(clean(gold)) else None
    if isinstance(shape, Choice):
        return "A" if shape.letter != "A" else "B"
    if isinstance(shape, Words):
        return rf"\text{{not {shape.text}}}"
    number = _FIRST_NUMBER.search(gold)
    if number is None:
        return f"{gold}+1"
    return f"{gold[: number.start()]}{int(number.group()) + 1}{gold[number.end() :]}"


def _decide(written_gold: str, response: str) -> Verdict | _Question:
    """Decides what needs no computer algebra."""
    gold = clean(written_gold) if len(written_gold) <= LONGEST else written_gold
    if not gold or not is_closed(gold):
        return _unreadable(written_gold, "cannot be read")
    written = extract_answer(response)
    answer = clean(written) if written is not None and len(written) <= LONGEST else written
    if written is None or not answer or not is_closed(answer):
        text = f"No answer was found. The reference answer is {written_gold[:_SHOWN]}."
        return Verdict.scored(0.0, reason="no answer", feedback=text, parts=_parts(no_answer=True))
    if answer == gold:
        return _right("string")
    if reason := refusal(gold):
        return _unreadable(written_gold, f"is not evaluated: {reason}")
    question = _Question(gold=gold, answer=answer, written_gold=written_gold, written_answer=written)
    if reason := refusal(answer):
        return _wrong(question, f"refused: {reason}")
    try:
        equal = same(read(gold), read(answer), ExactNumbers())
    except Undecided:
        return question
    return _right("string") if equal else _wrong(question, "string")


def _conclude(question: _Question, reply: Reply) -> Verdict:
    match reply.status, reply.value:
        case Status.DONE, "same":
            return _right("math-verify")
        case Status.DONE, "different":
            return _wrong(question, "math-verify")
        case Status.DONE, _:
            return _unreadable(question.written_gold, "cannot be read")
        case Status.TIMED_OUT, _:
            return _wrong(question, reply.reason, timed_out=True)
        case Status.OUT_OF_MEMORY, _:
            return _wrong(question, f"refused: {reply.reason}")
        case _:
            return Verdict.invalid(f"grading {question.answer!r} failed: {reply.reason}")


def _right(reason: str) -> Verdict:
    return Verdict.scored(1.0, reason=reason, feedback="Correct.", parts=_parts())


def _wrong(question: _Question, reason: str, *, timed_out: bool = False) -> Verdict:
    given, gold = question.written_answer[:_SHOWN], question.written_gold[:_SHOWN]
    text = f"The answer given is {given}. The reference answer is {gold}."
    return Verdict.scored(0.0, reason=reason, feedback=text, parts=_parts(timed_out=timed_out))


def _unreadable(gold: str, problem: str) -> Verdict:
    return Verdict.invalid(f"the reference answer {gold[:_SHOWN]!r} {problem}")


def _parts(*, timed_out: bool = False, no_answer: bool = False) -> dict[str, float]:
    return {"timed_out": float(timed_out), "no_answer": float(no_answer)}
