"""A whole diagnosis on a live model: what is sound passes, what is broken is refused."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diagnosis.subjects import FixedRoom, check, diagnose, names, subject_of
from tests.tiny import save_tiny_model, tiny_model
from turnpoint.assemble import Policy
from turnpoint.diagnosis import Status, Subject
from turnpoint.diagnosis.sampling import measure_speed
from turnpoint.engine.engine import TorchEngine
from turnpoint.engine.weights import weights_checksum
from turnpoint.models.decoder import Decoder

ALL = [
    "gold answers",
    "wrong answers",
    "template",
    "stop",
    "lengths",
    "problems",
    "vocabulary",
    "endings",
    "signal",
    "log-probabilities",
    "forks",
    "memory",
    "time",
]


def test_a_sound_recipe_can_run_and_every_check_is_made(recipe: Path) -> None:
    with subject_of(recipe) as subject:
        diagnosis = diagnose(subject)
    assert [check.name for check in diagnosis.checks] == ALL
    assert names(diagnosis.checks, "failed") == []
    assert diagnosis.can_run
    assert diagnosis.exit_status == 0
    assert "".join(diagnosis.first_prompt) == "<|user|>0 + 0 =<|end|><|assistant|><think></think>"
    assert "earn 0 in 16 of 16" in check(diagnosis, "gold answers").text  # a digit holds no vowel
    assert "engine and trainer agree" in check(diagnosis, "log-probabilities").text
    assert "2 steps" in check(diagnosis, "time").text


def test_weights_and_gradients_are_as_they_were_and_no_file_is_left(recipe: Path) -> None:
    before = sorted(path for path in recipe.parent.rglob("*") if "__pycache__" not in path.parts)
    with subject_of(recipe) as subject:
        model = subject.policy.model.decoder.model
        checksum = weights_checksum(dict(model.named_parameters()))
        diagnose(subject)
        assert weights_checksum(dict(model.named_parameters())) == checksum
        assert all(weight.grad is None for weight in model.parameters())
    after = sorted(path for path in recipe.parent.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_engine_trainer_and_forks_agree_at_any_temperature(
    recipe: Path, dtype: str, temperature: float
) -> None:
    with subject_of(recipe, f"model.dtype={dtype}", f"sampling.temperature={temperature}") as subject:
        diagnosis = diagnose(subject)
    assert check(diagnosis, "log-probabilities").status is Status.OK
    assert check(diagnosis, "forks").status is Status.OK


def test_dropout_and_absolute_positions_do_not_come_between_them(recipe: Path, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "gpt2", "gpt2")  # dropout 0.1 in its config
    with subject_of(recipe, f"model.path={folder}", "training.mismatch_tolerance=1e-4") as subject:
        diagnosis = diagnose(subject)
    assert check(diagnosis, "log-probabilities").status is Status.OK
    assert check(diagnosis, "forks").status is Status.OK


@pytest.mark.parametrize(
    "overrides",
    [
        ["kl.coef=0.1"],
        ["correction.cap=2", "training.epochs=2", "training.mini_batches=2"],
        ["loss.aggregation=constant", "advantage.overlong.kind=mask", "rollout.refill.rounds=2"],
    ],
)
def test_every_kind_of_recipe_can_be_examined(recipe: Path, overrides: list[str]) -> None:
    with subject_of(recipe, *overrides) as subject:
        assert diagnose(subject).can_run


# --- faults -------------------------------------------------------------------------------------


def with_engine_of(subject: Subject, decoder: Decoder) -> Subject:
    """The subject, sampled from by another decoder than the one that trains."""
    policy = subject.policy
    engine = TorchEngine(decoder, decode=policy.renderer.text, context_length=policy.model.context_length)
    return replace(subject, policy=Policy(model=policy.model, renderer=policy.renderer, engine=engine))


def test_an_engine_with_other_weights_is_refused(recipe: Path) -> None:
    with subject_of(recipe) as subject:
        decoder = subject.policy.model.decoder
        other = copy.deepcopy(decoder.model)
        with torch.no_grad():
            for weight in other.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        changed = with_engine_of(subject, Decoder(other, vocab_size=decoder.vocab_size))
        diagnosis = diagnose(changed)
    assert {"log-probabilities", "forks"} <= set(names(diagnosis.checks, "failed"))
    assert diagnosis.exit_status == 2
    assert "must not run" in diagnosis.verdict
    assert "training.mismatch_tolerance = 0.1" in check(diagnosis, "log-probabilities").text


class Lukewarm(Decoder):
    """Divides logits by 0.6 when nobody asked for it: raw log-probabilities at another temperature."""

    def finish(self, scores: torch.Tensor) -> torch.Tensor:
        return super().finish(scores) / 0.6


def test_an_engine_at_another_temperature_is_refused(recipe: Path) -> None:
    with subject_of(recipe) as subject:
        decoder = subject.policy.model.decoder
        lukewarm = Decoder(decoder.model, vocab_size=decoder.vocab_size)
        lukewarm.__class__ = Lukewarm
        diagnosis = diagnose(with_engine_of(subject, lukewarm))
    assert check(diagnosis, "log-probabilities").status is Status.FAILED


def test_a_model_that_gives_no_law_is_a_failed_check_not_a_traceback(recipe: Path) -> None:
    with subject_of(recipe) as subject:
        with torch.no_grad():
            subject.policy.model.decoder.head.weight[0, 0] = float("nan")
        diagnosis = diagnose(subject)
    assert check(diagnosis, "live model").status is Status.FAILED
    assert "not finite" in check(diagnosis, "live model").text


def test_prompts_that_do_not_fit_end_the_diagnosis_there(recipe: Path) -> None:
    with subject_of(recipe, "sampling.max_new_tokens=250") as subject:
        diagnosis = diagnose(subject)
    assert names(diagnosis.checks, "failed") == ["lengths"]
    assert "context" in check(diagnosis, "lengths").text
    assert diagnosis.checks[-1].name == "lengths"


def test_too_few_problems_for_a_step_are_refused_and_the_rest_is_looked_at(recipe: Path) -> None:
    with subject_of(recipe, "rollout.prompts_per_step=13") as subject:
        diagnosis = diagnose(subject)
    assert names(diagnosis.checks, "failed") == ["problems"]
    told = "12 problems left to train on, but rollout.prompts_per_step = 13"
    assert told in check(diagnosis, "problems").text
    assert [check.name for check in diagnosis.checks] == ALL


def test_a_recipe_too_large_for_memory_is_refused_with_what_would_fit(recipe: Path) -> None:
    overrides = ["rollout.samples_per_prompt=64", "sampling.max_new_tokens=128"]
    with subject_of(recipe, *overrides) as subject:
        roomy = check(diagnose(subject), "memory")
    assert roomy.status is Status.OK
    tight = FixedRoom(held=0, size=30 << 20)
    with subject_of(recipe, *overrides, room=tight) as subject:
        refused = check(diagnose(subject), "memory")
    assert refused.status is Status.FAILED
    setting = refused.text.split("; ")[-1].removesuffix(" would fit")
    assert setting.startswith("training.micro_batch_tokens=")
    with subject_of(recipe, *overrides, setting, room=tight) as subject:
        assert check(diagnose(subject), "memory").status is not Status.FAILED


def test_weights_that_cannot_fit_are_refused_before_anything_is_measured(recipe: Path) -> None:
    with subject_of(recipe, room=FixedRoom(held=1000, size=2000)) as subject:
        diagnosis = diagnose(subject)
    assert "take a smaller model" in check(diagnosis, "memory").text
    assert "time" not in [check.name for check in diagnosis.checks]


def test_a_cache_that_cannot_fit_is_refused_before_anything_is_measured(recipe: Path) -> None:
    overrides = ["rollout.samples_per_prompt=64", "sampling.max_new_tokens=200"]
    with subject_of(recipe, *overrides, room=FixedRoom(held=0, size=20 << 20)) as subject:
        diagnosis = diagnose(subject)
        sampled = subject.policy.engine.stats.sampled
    refused = check(diagnosis, "memory")
    assert refused.status is Status.FAILED
    assert "by arithmetic alone" in refused.text
    assert sampled == 0


def test_a_huge_batch_is_measured_in_part_and_that_is_said(recipe: Path) -> None:
    huge = ["rollout.samples_per_prompt=1000", "engine.max_running=4000"]
    with subject_of(recipe, *huge) as subject:
        tasks = subject.problems.train.tasks[:4]
        speed = asyncio.run(measure_speed(subject.config, subject.policy, tasks, seconds=0.0))
    assert (speed.rollouts, speed.rollouts_at_once) == (8, 4000)
    assert speed.measured == "rollouts measured with 8 of 4,000 at once"


def test_little_time_gives_short_rollouts_and_claims_nothing_of_their_ends(recipe: Path) -> None:
    with subject_of(recipe, "sampling.max_new_tokens=200", seconds=0.0) as subject:
        diagnosis = diagnose(subject)
    assert "not known" in check(diagnosis, "signal").text
    assert "only 16 tokens each were sampled" in check(diagnosis, "endings").text
    assert "up to about" in check(diagnosis, "time").text


def test_rewards_that_never_differ_and_rollouts_never_judged(recipe: Path) -> None:
    rewards = recipe.parent / "rewards.py"
    rewards.write_text(
        "def same(completion, task):\n    return 1.0\n\n"
        "def broken(completion, task):\n    return 1.0 if completion == task.answer else None\n"
    )
    with subject_of(recipe, f"verifier.path={rewards}:same") as subject:
        diagnosis = diagnose(subject)
    assert "differ within 0 of 4 groups of 4" in check(diagnosis, "signal").text
    assert check(diagnosis, "signal").status is Status.WARNING
    assert check(diagnosis, "wrong answers").status is Status.WARNING
    alone = ["distill.task=false", "distill.teachers.old={kind: hindsight}", f"verifier.path={rewards}:same"]
    with subject_of(recipe, *alone) as subject:
        diagnosis = diagnose(subject)
    assert check(diagnosis, "signal").status is Status.OK, "the teacher teaches"
    with subject_of(recipe, f"verifier.path={rewards}:broken") as subject:
        diagnosis = diagnose(subject)
    assert check(diagnosis, "signal").status is Status.FAILED
    assert "100 % of rollouts invalid" in check(diagnosis, "signal").text


def test_padded_rows_of_the_vocabulary_are_never_sampled(recipe: Path, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "padded")
    model: Any = tiny_model(vocab_size=192)
    with torch.no_grad():
        model.lm_head.weight[150] = 100 * model.lm_head.weight[20:60].mean(0)  # the likeliest row of all
    model.save_pretrained(folder)
    with subject_of(recipe, f"model.path={folder}") as subject:
        known = subject.policy.model.decoder.vocab_size
        diagnosis = diagnose(subject)
    assert known < 150
    assert check(diagnosis, "vocabulary").status is Status.OK
    assert f"the {192 - known} padded rows beyond are never sampled" in check(diagnosis, "vocabulary").text
