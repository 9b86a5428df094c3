"""`turnpoint eval`: greedy and sampled accuracy of a recipe's model or of a trained run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from turnpoint.assemble import open_verifier
from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.commands.session import Session
from turnpoint.config import load_recipe
from turnpoint.errors import RecipeError
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.evaluate import Evaluation


def evaluate(source: str | Path, overrides: Sequence[str] = ()) -> Evaluation:
    """Evaluates the model of a recipe, or the latest checkpoint of a run folder, on its held-out problems.

    Raises UserError when there is nothing to evaluate.
    """
    terminal = Terminal()
    config = load_recipe(recipe_of(Path(source)), overrides)
    if config.evaluation is None:
        raise RecipeError(f"{source} holds nothing out: add for example evaluation.tasks=64")
    problems = read_problems(config, terminal)
    with open_verifier(config) as verifier:
        policy = read_policy(config, problems, terminal)
        title = config.model.path
        if Path(source).is_dir():
            title = str(restore(config, policy, Path(source), terminal))
        session = Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
        return asyncio.run(session.evaluate_held_out(problems.evaluation, config.evaluation, title))
