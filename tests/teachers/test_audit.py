"""What a student and a teacher must agree on before the first rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turnpoint.errors import ModelError
from turnpoint.teachers.audit import Reader, check_context, check_rendering, check_vocabulary
from turnpoint.types import token_array

STUDENT = Reader(
    name="the policy (small)",
    vocabulary={"a": 0, "b": 1, "<end>": 2},
    special_ids=frozenset({2}),
    context_length=64,
)
TEACHER = replace(STUDENT, name="teacher big (large)")


def test_the_same_tokens_pass_and_so_does_a_teacher_that_knows_more() -> None:
    check_vocabulary(STUDENT, TEACHER)
    check_vocabulary(STUDENT, replace(TEACHER, vocabulary={**STUDENT.vocabulary, "<tool>": 3}))
    more = {**STUDENT.vocabulary, "<tool>": 3}
    check_vocabulary(STUDENT, replace(TEACHER, vocabulary=more, special_ids=frozenset({2, 3})))


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (
            {"b": 0, "a": 1, "<end>": 2},
            "reads 2 of the 3 ids .* the first is 0: 'a' to the policy, 'b' to the",
        ),
        ({"a": 0, "b": 1}, "reads 1 of the 3 ids .* 2: '<end>' to the policy, unknown to the teacher"),
    ],
)
def test_another_meaning_of_an_id_is_refused(vocabulary: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_vocabulary(STUDENT, replace(TEACHER, vocabulary=vocabulary))


def test_another_special_id_is_refused() -> None:
    with pytest.raises(ModelError, match="do not agree on which ids are special, the first is 1: 'b'"):
        check_vocabulary(STUDENT, replace(TEACHER, special_ids=frozenset({1, 2})))


def test_a_shorter_context_is_refused() -> None:
    check_context(TEACHER, longest=64)
    with pytest.raises(ModelError, match="a context of 64 tokens, and a prompt with its rollout may take 65"):
        check_context(TEACHER, longest=65)


@pytest.mark.parametrize(("theirs", "at"), [([0, 2, 2], 1), ([0, 1], 2), ([0, 1, 2, 2], 3)])
def test_another_rendering_is_refused_where_it_parts(theirs: list[int], at: int) -> None:
    mine, words = token_array([0, 1, 2]), ["a", "b", "<end>"]
    check_rendering(TEACHER, student_ids=mine, teacher_ids=mine, words=words)
    with pytest.raises(
        ModelError, match=rf"they part at token {at}, behind '{''.join(words[:at])}'.*template=any"
    ):
        check_rendering(TEACHER, student_ids=mine, teacher_ids=token_array(theirs), words=words)
