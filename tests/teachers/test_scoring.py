"""What a teacher behind an engine says: the law of its own model, token by token, wherever trees fork."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest

from tests.engine.serve import logprobs_of, make_engine
from tests.records import branched_group
from tests.tiny import tiny_decoder
from turnpoint.teachers.metrics import teacher_metrics
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.scoring import ScoringTeacher, Told
from turnpoint.teachers.teaching import Teaching
from turnpoint.types import Group, TeacherTargets, TokenIds, token_array

ONE = Routing(names=("big",), key=None)


def teacher(*, seed: int = 1, temperature: float = 1.0, told: Told | None = None) -> ScoringTeacher:
    engine = make_engine(tiny_decoder(seed=seed))
    return ScoringTeacher(name="big", engine=engine, coef=0.5, temperature=temperature, told=told)


def words_of(group: Group, some: ScoringTeacher) -> Mapping[int, TeacherTargets]:
    teaching = Teaching(teachers={"big": some}, routing=ONE, task=True)
    return asyncio.run(teaching.words([group]))[0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_every_token_of_every_valid_member_gets_the_teachers_own_law(temperature: float) -> None:
    group = branched_group()
    word = words_of(group, teacher(temperature=temperature))
    valid = {it for member in group.members if member.verdict.valid for it in member.segments}
    assert set(word) == valid
    assert len(valid) > 3
    for segment in valid:
        path = group.tree.path_ids(segment)
        start = len(path) - len(group.tree.segments[segment])
        expected = logprobs_of(tiny_decoder(seed=1), path, start, temperature)
        np.testing.assert_allclose(word[segment].logprobs, expected, atol=1e-5)
        assert word[segment].coef == 0.5


def test_another_prompt_comes_before_the_same_tokens() -> None:
    group, prompt = branched_group(), token_array([9, 8, 7, 6])

    def told(group: Group, member: int) -> TokenIds | None:
        return prompt if member == 0 else None

    word = words_of(group, teacher(told=told))
    assert set(word) == set(group.members[0].segments), "the others are left without a word"
    for segment in group.members[0].segments:
        path = np.concatenate([prompt, group.tree.path_ids(segment)[len(group.tree.segments[0]) :]])
        start = len(path) - len(group.tree.segments[segment])
        np.testing.assert_allclose(
            word[segment].logprobs, logprobs_of(tiny_decoder(seed=1), token_array(path), start), atol=1e-5
        )


def test_what_does_not_fit_its_context_gets_no_word() -> None:
    small = ScoringTeacher(
        name="big", engine=make_engine(context_length=2), coef=1.0, temperature=1.0, told=None
    )
    assert words_of(branched_group(), small) == {}


def test_a_student_that_is_its_own_teacher_differs_by_nothing() -> None:
    group = branched_group()
    own = {
        segment.id: TeacherTargets(logprobs=segment.logprobs, coef=1.0)
        for segment in group.tree.segments
        if segment.logprobs is not None
    }
    metrics = teacher_metrics([group], [own], ONE, clip=None)
    assert metrics["teacher/kl"].value == 0.0
    assert metrics["teacher/gap_p99"].value == 0.0


def test_the_figures_by_hand() -> None:
    group = branched_group()
    first = next(iter(group.generated(0)))
    assert first.logprobs is not None
    said = first.logprobs + np.linspace(-1, 1, len(first), dtype=np.float32)
    said[0] = -np.inf
    metrics = teacher_metrics([group], [{first.id: TeacherTargets(logprobs=said, coef=1.0)}], ONE, clip=0.5)
    gaps = np.linspace(-1, 1, len(first))
    gaps[0] = -100 - first.logprobs[0]  # a teacher gives no less than that
    assert metrics["teacher/kl"].value == pytest.approx(-gaps.mean(), abs=1e-5)
    assert metrics["teacher/gap_p50"].value == pytest.approx(np.quantile(np.abs(gaps), 0.5), abs=1e-5)
    assert metrics["teacher/clipped"].value == np.mean(np.abs(gaps) > 0.5)
    assert metrics["teacher/tokens"].value == len(first)
    assert metrics["teacher/floored"].value == 1
    silent = sum(member.verdict.valid for member in group.members) - 1
    assert metrics["teacher/silent"].value == silent
