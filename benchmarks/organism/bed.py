"""The one way to an organism: built once, then read from the cache, with a recipe to train it by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import turnpoint
from benchmarks.organism import build, hindsight, language, model, settings
from benchmarks.organism.settings import Lesson, OrganismSettings
from turnpoint.config import ModelConfig, RunConfig
from turnpoint.config.asking import FunctionVerifierConfig, JsonlTasks
from turnpoint.config.learning import (
    EvaluationConfig,
    OptimizerConfig,
    RolloutConfig,
    SamplingConfig,
    TrainingConfig,
)
from turnpoint.models.folders import cache_folder, staged

DEFAULT = OrganismSettings()
REFLECTIVE = OrganismSettings(  # also reads a record and reflects; taught all at once it learns no tables
    lessons=(
        Lesson(solutions=16_000),
        Lesson(solutions=4_000, reflections=12_000, hindsights=8_000, learning_rate=1e-3),
        Lesson(solutions=2_000, reflections=4_000, hindsights=14_000, learning_rate=1e-3),
    )
)
_SOURCES = (
    build,
    hindsight,
    language,
    model,
    settings,
)  # what the weights depend on, beside turnpoint itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Organism:
    """A cold-started model, its problems, and the recipe of plain GRPO on them."""

    model: Path  # a Hugging Face folder
    problems: Path  # JSON lines: question, answer; the last ones are held out by the recipe
    recipe: RunConfig


def make_organism(settings: OrganismSettings = DEFAULT) -> Organism:
    """Returns the organism of `settings`; the first time that takes minutes of one core.

    It is kept in turnpoint's cache folder. Processes that build the same one at the same time do the work
    twice and keep one.
    """
    folder = cache_folder() / "organisms" / fingerprint(settings)
    if not folder.is_dir():
        with staged(folder, replace=False) as new:
            build.build(settings, new)
    return Organism(
        model=folder / "model",
        problems=folder / "problems.jsonl",
        recipe=recipe(settings, model=folder / "model", problems=folder / "problems.jsonl"),
    )


def fingerprint(settings: OrganismSettings) -> str:
    """Returns a name that changes with the settings and with the code that makes organisms."""
    parts = [repr(settings), turnpoint.__version__]
    parts += [Path(str(source.__file__)).read_text(encoding="utf-8") for source in _SOURCES]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def recipe(settings: OrganismSettings, *, model: Path, problems: Path) -> RunConfig:
    """Returns GRPO for a minutes-long run of one core: 16 problems x 16 samples a step."""
    return RunConfig(
        name="organism",
        model=ModelConfig(
            path=str(model), dtype="float32"
        ),  # the same run on processors with and without bfloat16
        tasks=JsonlTasks(kind="jsonl", path=problems),
        verifier=FunctionVerifierConfig(
            kind="function", path=f"{Path(__file__).with_name('verify.py')}:reward"
        ),
        sampling=SamplingConfig(max_new_tokens=language.longest_solution(settings) + 5),
        rollout=RolloutConfig(prompts_per_step=16, samples_per_prompt=16),
        optimizer=OptimizerConfig(learning_rate=1e-4),
        training=TrainingConfig(steps=100),
        evaluation=EvaluationConfig(tasks=settings.held_out_problems, samples=1, every=20),
    )
