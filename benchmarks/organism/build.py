"""The cold start: a random model learns from noisy solutions, misconceptions included.

python -m benchmarks.organism.build    # minutes of one core, once; says where the organism is
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import turnpoint as tp
from benchmarks.organism.hindsight import hindsight_example, reflection_example
from benchmarks.organism.language import Problem, draw_problem, write_solution
from benchmarks.organism.model import save_untrained
from benchmarks.organism.settings import Lesson, OrganismSettings
from turnpoint.config import ModelConfig, OptimizerConfig, SftConfig, SftTrainingConfig
from turnpoint.config.asking import JsonlTasks


def build(settings: OrganismSettings, folder: Path) -> None:
    """Writes the trained model to `folder`/model and problems it never saw to `folder`/problems.jsonl.

    Of the problems the last `held_out_problems` are for evaluation. Takes minutes of one core.
    """
    rng = random.Random(settings.seed)
    problems = distinct_problems(rng, settings)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        model = scratch / "untrained"
        save_untrained(model, settings)
        for number, lesson in enumerate(settings.lessons, start=1):
            rows = examples(lesson, problems, rng, settings)
            model = teach(lesson, settings, rows, model=model, folder=scratch / f"lesson-{number}")
        shutil.copytree(model, folder / "model")
    rest = islice(problems, settings.train_problems + settings.held_out_problems)
    write_lines(folder / "problems.jsonl", [{"question": it.question, "answer": it.answer} for it in rest])


def examples(
    lesson: Lesson, problems: Iterator[Problem], rng: random.Random, settings: OrganismSettings
) -> list[dict[str, str]]:
    """Returns what a lesson teaches, as question and answer; several kinds are shuffled."""
    kinds = (
        (solution_example, lesson.solutions),
        (reflection_example, lesson.reflections),
        (hindsight_example, lesson.hindsights),
    )
    rows = [write(it, rng, settings) for write, count in kinds for it in islice(problems, count)]
    if len(rows) > lesson.solutions:
        rng.shuffle(rows)
    return rows


def solution_example(problem: Problem, rng: random.Random, settings: OrganismSettings) -> dict[str, str]:
    """Returns a problem and a noisy solution."""
    return {"question": problem.question, "answer": write_solution(problem, rng, settings).text}


def distinct_problems(rng: random.Random, settings: OrganismSettings) -> Iterator[Problem]:
    """Yields random problems without end, none of them twice."""
    seen: set[Problem] = set()
    while True:
        if (problem := draw_problem(rng, settings)) not in seen:
            seen.add(problem)
            yield problem


def teach(
    lesson: Lesson, settings: OrganismSettings, rows: list[dict[str, str]], *, model: Path, folder: Path
) -> Path:
    """Returns where in `folder` the model of `model` is after `rows`."""
    folder.mkdir()
    write_lines(folder / "examples.jsonl", rows)
    optimizer = OptimizerConfig(
        learning_rate=lesson.learning_rate, schedule="linear", warmup_steps=settings.warmup_steps
    )
    run = tp.sft(
        SftConfig(
            name=folder.name,
            seed=settings.seed,
            output_dir=folder / "runs",
            model=ModelConfig(path=str(model)),
            tasks=JsonlTasks(kind="jsonl", path=folder / "examples.jsonl", format="plain"),
            optimizer=optimizer,
            training=SftTrainingConfig(examples_per_step=settings.examples_per_step, head_chunk_tokens=1024),
        )
    )
    tp.export(run.folder, folder / "model")
    return folder / "model"


def main() -> None:
    """Builds the default organism unless the cache has it, and says where it is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.organism.build",
        description="Builds the default organism (minutes of one core) unless it is in turnpoint's cache "
        "folder (TURNPOINT_CACHE), and prints where its model and problems are. Other organisms, and the "
        "recipe to train one by: make_organism in benchmarks/organism/bed.py. See docs/organism.md.",
    )
    parser.parse_args()
    from benchmarks.organism.bed import make_organism  # which builds with this module

    organism = make_organism()
    print(f"model     {organism.model}")
    print(f"problems  {organism.problems}")


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
