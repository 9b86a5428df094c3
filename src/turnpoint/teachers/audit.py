"""Whether a student's tokens mean the same to a teacher: asked before the first rollout, refused in one line.

A teacher is handed ids. If one id stands for another string, if its template would have rendered the problem
otherwise, or if its context ends before the student's does, its probabilities are about another text, and
nothing downstream can see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnpoint.errors import ModelError
from turnpoint.types import TokenIds

_AROUND = 3  # ids shown on each side of where two renderings part


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What a model takes ids for."""

    name: str
    vocabulary: Mapping[str, int]  # of its tokenizer, added tokens included
    special_ids: frozenset[int]
    context_length: int  # tokens


def check_vocabulary(student: Reader, teacher: Reader) -> None:
    """Raises ModelError unless every id that the student knows is the same string to the teacher.

    A teacher may know more; a padded head is no vocabulary, and its rows are outside both laws already.
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


def _shown(token: str | None) -> str:
    return "unknown" if token is None else repr(token)


def check_context(teacher: Reader, *, longest: int) -> None:
    """Raises ModelError unless the longest rollout, prompt included, fits the teacher's context."""
    if teacher.context_length < longest:
        raise ModelError(
            f"{teacher.name} has a context of {teacher.context_length} tokens, and a prompt with its rollout "
            f"may take {longest}; lower sampling.max_new_tokens or take another teacher"
        )


def check_rendering(
    teacher: Reader, *, student_ids: TokenIds, teacher_ids: TokenIds, words: Sequence[str]
) -> None:
    """Raises ModelError unless both templates render a problem alike; `words`: of the student's ids."""
    if student_ids.tolist() == teacher_ids.tolist():
        return
    pairs = zip(student_ids.tolist(), teacher_ids.tolist(), strict=False)
    parts = next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    at = min(len(student_ids), len(teacher_ids)) if parts is None else parts
    raise ModelError(
        f"{teacher.name} would have been shown the first problem as {len(teacher_ids)} tokens, not as these "
        f"{len(student_ids)}; they part at token {at}, behind {''.join(words[max(0, at - _AROUND) : at])!r}. "
        f"A teacher speaks about what its template makes of a problem: take one with the policy's template, "
        f"or let it judge another with template=any"
    )
