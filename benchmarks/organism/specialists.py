"""Two kinds of problems with one misconception each, and an expert for each of them.

    plus     has +8, neither -6 nor *7; 8 to 10 steps
    minus    has -6, neither +8 nor *7; 5 or 6 steps

An expert is the organism's cold start after GRPO on problems of its kind alone, so that what it learns is of
no use to the other kind. It is trained once, minutes of one core, and kept in the cache.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import turnpoint as tp
from benchmarks.organism.arms import ARMS, arm_recipe
from benchmarks.organism.bed import DEFAULT, fingerprint, make_organism
from benchmarks.organism.build import distinct_problems, write_lines
from benchmarks.organism.language import Problem
from benchmarks.organism.settings import OrganismSettings
from turnpoint.config import RunConfig
from turnpoint.config.asking import JsonlTasks
from turnpoint.models.folders import cache_folder, staged

KINDS: Mapping[str, tuple[str, tuple[int, int]]] = {"plus": ("+8", (8, 10)), "minus": ("-6", (5, 6))}
HELD_OUT = 256  # problems of each kind
_TRAINED = 2048
_SEED = 101  # that no student has; the draws of problems and of experts
_STEPS = 80


def problems_of(kind: str, *, seed: int) -> Iterator[Problem]:
    """Yields distinct problems of `kind` without end."""
    operation, steps = KINDS[kind]
    wrong = {it.operation for it in DEFAULT.misconceptions}
    settings = OrganismSettings(steps=steps)
    for problem in distinct_problems(random.Random(seed), settings):
        if wrong & {*problem.operations} == {operation}:
            yield problem


def rows_of(kind: str, problems: Iterator[Problem], count: int) -> list[dict[str, str]]:
    """Returns `count` rows with the column that names the problem's expert."""
    return [
        {"question": it.question, "answer": it.answer, "teacher": kind}
        for it in itertools.islice(problems, count)
    ]


def specialist_folder(kind: str) -> Path:
    """Returns where the expert of `kind` is or will be: `problems.jsonl`, held-out ones last, and `run`."""
    return cache_folder() / "organisms" / f"{fingerprint(DEFAULT)}-{kind}"


def make_specialist(kind: str) -> Path:
    """Trains the expert of `kind` unless it is there; returns its run folder."""
    folder = specialist_folder(kind)
    if not folder.is_dir():
        with (
            staged(folder, replace=False) as new,
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            problems = new / "problems.jsonl"
            write_lines(problems, rows_of(kind, problems_of(kind, seed=_SEED), _TRAINED + HELD_OUT))
            recipe = arm_recipe(on(problems), ARMS["grpo"], seed=_SEED, steps=_STEPS, every=_STEPS)
            tp.train(recipe.model_copy(update={"output_dir": new, "name": "run"}))
    return folder / "run"


def on(problems: Path) -> RunConfig:
    """Returns the organism's recipe on a file whose last `HELD_OUT` problems are held out."""
    base = make_organism(DEFAULT).recipe
    evaluation = None if base.evaluation is None else base.evaluation.model_copy(update={"tasks": HELD_OUT})
    return base.model_copy(
        update={"tasks": JsonlTasks(kind="jsonl", path=problems), "evaluation": evaluation}
    )


def accuracy(run: Path, kind: str) -> float:
    """Returns the accuracy of a run's last checkpoint at temperature 1 on the held-out problems of `kind`."""
    held_out = [f"tasks.path={specialist_folder(kind) / 'problems.jsonl'}", f"evaluation.tasks={HELD_OUT}"]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = tp.evaluate(run, held_out).sampled
    if found is None or found.accuracy is None:
        raise ValueError(f"{run} has no accuracy at temperature 1")
    return found.accuracy
