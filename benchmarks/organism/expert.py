"""A teacher for the organism: the same cold start after GRPO; trained once, then kept in the cache."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from benchmarks.organism.arms import ARMS, arm_recipe
from benchmarks.organism.bed import DEFAULT, fingerprint, make_organism
from benchmarks.organism.grid import read_curve
from benchmarks.organism.settings import OrganismSettings
from turnpoint.models.folders import cache_folder, staged

_SEED = 100  # that no student has
_STEPS = 120


def expert_folder(settings: OrganismSettings = DEFAULT) -> Path:
    """Returns where the run folder of the expert is, or will be."""
    return cache_folder() / "organisms" / f"{fingerprint(settings)}-expert" / "expert"


def make_expert(settings: OrganismSettings = DEFAULT) -> dict[str, float]:
    """Trains the expert unless it is there, minutes of one core; returns its last evaluation."""
    import turnpoint as tp

    run = expert_folder(settings)
    if not run.is_dir():
        recipe = arm_recipe(
            make_organism(settings).recipe, ARMS["grpo"], seed=_SEED, steps=_STEPS, every=_STEPS
        )
        with (
            staged(run.parent, replace=False) as new,
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            tp.train(recipe.model_copy(update={"output_dir": new, "name": run.name}))
    return read_curve(run, share=1.0)[-1]
