"""Whether a student's tokens mean the same to a teacher: asked before the first rollout, refused in one line.

A teacher is handed ids. If one id stands for another string, if its template would have rendered the problem
otherwise, or if its context ends before the student's does, its probabilities are about another text, and
nothing downstream can see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.errors import ModelError
from turnpoint.protocols import Capabilities
from turnpoint.types import TokenIds

Ask: TypeAlias = Callable[[str, Callable[[], str]], None]  # what is looked at, and what says what it is

_AROUND = 3  # ids shown on each side of where two renderings part


def refuse(what: str, look: Callable[[], str]) -> None:
    """An `Ask` that passes on what a check raises."""
    look()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What a model takes ids for."""

    name: str
    vocabulary: Mapping[str, int]  # of its tokenizer, added tokens included
    special_ids: frozenset[int]
    context_length: int  # tokens


def check_vocabulary(student: Reader, teacher: Reader) -> str:
    """Says how many ids mean the same; raises ModelError unless all do that the student knows.

    A teacher may know more; a padded head is no vocabulary. Both are outside the law that it is asked for.
    """
    theirs = {number: token for token, number in teacher.vocabulary.items()}
    wrong = [
        (number, token, theirs.get(number))
        for token, number in sorted(student.vocabulary.items(), key=lambda item: item[1])
        if theirs.get(number) != token
    ]
    if wrong:
        number, token, other = wrong[0]
        raise ModelError(
            f"{teacher.name} reads {len(wrong)} of the {len(student.vocabulary)} ids of {student.name} as "
            f"something else, the first is {number}: {token!r} to the policy, {_shown(other)} to the "
            f"teacher; a teacher needs the policy's tokenizer"
        )
    differ = {number for number in student.special_ids ^ teacher.special_ids if number in theirs}
    if differ := sorted(number for number in differ if theirs[number] in student.vocabulary):
        raise ModelError(
            f"{teacher.name} and {student.name} do not agree on which ids are special, the first is "
            f"{differ[0]}: {theirs[differ[0]]!r}; a teacher needs the policy's tokenizer"
        )
    more = len(teacher.vocabulary) - len(student.vocabulary)
    known = (
        f"all {len(student.vocabulary)} ids are the same strings, {len(student.special_ids)} of them special"
    )
    return known + (f"; the {more} that the teacher knows beyond are in no law" if more else "")


def _shown(token: str | None) -> str:
    return "unknown" if token is None else repr(token)


def check_context(teacher: Reader, *, longest: int) -> str:
    """Says so when the longest rollout, prompt included, fits the teacher's context, or raises ModelError."""
    if teacher.context_length < longest:
        raise ModelError(
            f"{teacher.name} has a context of {teacher.context_length} tokens, and a prompt with its rollout "
            f"may take {longest}; lower sampling.max_new_tokens or take another teacher"
        )
    return f"the longest prompt with its rollout, {longest} tokens, fits its {teacher.context_length}"


def check_temperature(teacher: str, engine: Capabilities, *, temperature: float) -> str:
    """Says so when a teacher can be asked at the temperature of sampling, or raises ModelError.

    A policy that samples at T and a teacher that answers at 1 would meet where p_T = q_1: not the teacher.
    """
    if temperature != 1 and not engine.score_temperature:
        raise ModelError(
            f"{teacher} scores at temperature 1 only ({engine.name}), and sampling.temperature = "
            f"{temperature:g}: d would draw the policy to another law than the teacher's; sample at "
            f"temperature 1, or take a teacher in this process"
        )
    return f"scores at the temperature of sampling, {temperature:g}"


def check_rendering(
    teacher: Reader, *, student_ids: TokenIds, teacher_ids: TokenIds, words: Sequence[str]
) -> str:
    """Says so when both templates render a problem alike, or raises ModelError; `words`: of student_ids."""
    if student_ids.tolist() == teacher_ids.tolist():
        return f"both templates render a problem to the same {len(student_ids)} tokens"
    pairs = zip(student_ids.tolist(), teacher_ids.tolist(), strict=False)
    parts = next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    at = min(len(student_ids), len(teacher_ids)) if parts is None else parts
    raise ModelError(
        f"{teacher.name} would have been shown a problem as {len(teacher_ids)} tokens, not as these "
        f"{len(student_ids)}; they part at token {at}, behind {''.join(words[max(0, at - _AROUND) : at])!r}. "
        f"A teacher speaks about what its template makes of a problem: take one with the policy's template, "
        f"or let it judge another with template=any"
    )
