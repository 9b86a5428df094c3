"""Teachers in a diagnosis: what is asked of each, what refuses one, what it takes and says first."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.diagnosis.subjects import FixedRoom, check, diagnose, names, subject_of
from tests.records import branched_group
from tests.teachers import folders
from tests.typed import Command, is_one_line
from turnpoint.assemble import Policy, load_policy, load_problems
from turnpoint.calibration import calibrate, words_on
from turnpoint.config import load_recipe
from turnpoint.diagnosis import Status
from turnpoint.distill import open_teachers
from turnpoint.engine.engine import TorchEngine
from turnpoint.errors import ModelError
from turnpoint.protocols import Capabilities, ScoreRequest, Scores
from turnpoint.teachers.audit import check_temperature

BAD = {
    "other_ids": ("ids", "reads 2 of the 108 ids of the policy"),
    "short_context": ("context", "a context of 16 tokens, and a prompt with its rollout may take 20"),
    "other_template": ("rendering", "as 13 tokens, not as these 12; they part at token 1"),
}


class Bent(TorchEngine):
    """Says of given tokens what it would say of them, and 0.3 nats less."""

    def __init__(self, sound: TorchEngine) -> None:
        self.__dict__ = sound.__dict__

    async def score(self, request: ScoreRequest) -> Scores:
        scores = await super().score(request)
        return replace(scores, logprobs=scores.logprobs - np.float32(0.3))


def by_column(recipe: Path, *teachers: str) -> list[str]:
    """Marks the recipe's problems for `teachers` in turn; returns the key of their column as an override."""
    rows = [json.loads(line) for line in (recipe.parent / "sums.jsonl").read_text().splitlines()]
    marked = [{**row, "expert": teachers[at % len(teachers)]} for at, row in enumerate(rows)]
    (recipe.parent / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in marked))
    return ["distill.key=expert"]


def test_every_teacher_is_looked_at_and_each_fault_is_a_line_of_its_own(
    turnpoint: Command, recipe: Path, tmp_path: Path
) -> None:
    made = {name: getattr(folders, name)(tmp_path / name) for name in ("plain", *BAD)}
    teachers = [f"distill.teachers.{name}.path={folder}" for name, folder in made.items()]
    answer = turnpoint("doctor", recipe, *by_column(recipe, *made), *teachers, "--seconds=0.1")
    assert answer.status == 2
    for what in ("ids", "context", "rendering", "temperature"):
        assert f"\n  ok       plain: {what}" in answer.out
        for name in BAD:
            status = "failed  " if BAD[name][0] == what else "ok      "
            assert f"\n  {status} {name}: {what}" in answer.out
    assert all(words in answer.out for _, words in BAD.values())
    assert "calibration" not in answer.out, "what must not teach is asked nothing"
    assert answer.out.splitlines()[-1].endswith(
        "other_ids: ids, short_context: context, other_template: rendering"
    )


@pytest.mark.parametrize("name", BAD)
def test_a_run_is_refused_for_the_same_reason_in_one_line(
    turnpoint: Command, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = getattr(folders, name)(tmp_path / name)
    capsys.readouterr()  # what saving a model says
    answer = turnpoint("train", recipe, f"distill.teachers.big.path={folder}")
    assert is_one_line(answer, BAD[name][1])
    assert not (recipe.parent / "runs" / "tiny").exists()


def test_sound_teachers_are_calibrated_counted_and_asked(
    recipe: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    options = [
        *by_column(recipe, "big", "own", "later"),
        f"distill.teachers.big.path={folders.plain(tmp_path / 'plain')}",
        f"distill.teachers.own.path={tiny_folder}",
        "distill.teachers.later={kind: hindsight, source: sibling}",
    ]
    with subject_of(recipe, *options) as subject:
        diagnosis = diagnose(subject)
        refused = replace(subject, room=FixedRoom(held=0, size=20_000))
        tight = check(diagnose(refused), "memory")
    assert names(diagnosis.checks, "failed") == []
    calibrations = [it.text for it in diagnosis.checks if it.name == "calibration"]
    assert ["the policy" in calibrations[0], "teacher own" in calibrations[1]] == [True, True]
    kl = check(diagnosis, "big: KL").text
    assert float(kl.split("start: ")[1].split(" nats")[0]) > 1
    assert "content" in kl
    assert abs(float(check(diagnosis, "own: KL").text.split("start: ")[1].split(" nats")[0])) < 1e-5
    assert "teachers 0." in check(diagnosis, "memory").text
    assert tight.status is Status.FAILED
    assert "0.4 MiB those of teachers" in tight.text
    assert "a smaller model or teacher" in tight.text


def test_a_padded_teacher_says_what_the_same_one_says_without_padding(recipe: Path, tmp_path: Path) -> None:
    made = {name: getattr(folders, name)(tmp_path / name) for name in ("plain", "padded")}
    config = load_recipe(
        recipe,
        [*by_column(recipe, *made), *[f"distill.teachers.{name}.path={made[name]}" for name in made]],
    )
    problems = load_problems(config)
    policy = load_policy(config, problems.examples)
    assert config.distill is not None
    opened = asyncio.run(
        open_teachers(
            config, config.distill, policy, problems.train.tasks, examples=problems.examples, longest=20
        )
    )
    assert opened.decoders["padded"].head.weight.shape[0] == 192
    plain, padded = (
        asyncio.run(words_on(opened.teaching.teachers[name], [branched_group()]))[0] for name in made
    )
    assert len(plain) > 3
    for segment, targets in plain.items():
        np.testing.assert_allclose(padded[segment].logprobs, targets.logprobs, atol=1e-5)


def test_an_engine_that_does_not_score_as_it_samples_is_refused(recipe: Path) -> None:
    with subject_of(recipe) as subject:
        bent = Bent(subject.policy.engine)
        policy = Policy(model=subject.policy.model, renderer=subject.policy.renderer, engine=bent)
        (found,) = asyncio.run(calibrate(subject.config, policy, subject.problems.train.tasks, {}))
    with pytest.raises(ModelError, match=r"the policy, asked .* and does not: mean .d. 0\.3.*float32"):
        found.text(tolerance=0.1)
    assert "0.3" in found.text(tolerance=0.31)


def test_a_teacher_that_scores_at_temperature_1_alone_serves_sampling_at_1_alone() -> None:
    able = Capabilities(
        name="server",
        context_length=100,
        entropy=False,
        max_top_k=0,
        score_temperature=False,
        prefix_cache=False,
    )
    assert "temperature of sampling, 1" in check_temperature("teacher big", able, temperature=1.0)
    with pytest.raises(ModelError, match=r"teacher big scores at temperature 1 only \(server\).*= 0.7"):
        check_temperature("teacher big", able, temperature=0.7)
    tempered = replace(able, score_temperature=True)
    assert "0.7" in check_temperature("teacher big", tempered, temperature=0.7)
