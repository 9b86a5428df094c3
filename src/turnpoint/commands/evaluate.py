"""`turnpoint eval`: greedy and sampled accuracy of a recipe's model or of a trained run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from turnpoint.assemble import open_verifier
from turnpoint.commands.common import read_policy, read_problems, recipe_of, restore
from turnpoint.commands.session import Session
from turnpoint.config import RunConfig, SftConfig, load_recipe, load_run_recipe
from turnpoint.errors import RecipeError
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.evaluate import Evaluation


def evaluate(source: str | Path, overrides: Sequence[str] = ()) -> Evaluation:
    """Evaluates the model of a recipe, or the latest checkpoint of a run folder, on its held-out problems.

    Raises UserError when there is nothing to evaluate.
    """
    terminal = Terminal()
    recipe = recipe_of(Path(source))
    if Path(source).is_dir() and isinstance(load_run_recipe(recipe), SftConfig):
        raise RecipeError(
            f"{source} is a run of turnpoint sft, which has no verifier: turnpoint export {source} DIR, then "
            f"evaluate a recipe of turnpoint train with model.path=DIR"
        )
    config = load_recipe(recipe, overrides)
    if config.evaluation is None:
        raise RecipeError(f"{source} holds nothing out: add for example evaluation.tasks=64")
    if Path(source).is_dir():
        _refuse_trained_problems(load_recipe(recipe_of(Path(source))), config)
    problems = read_problems(config, terminal, trains=False)
    with open_verifier(config) as verifier:
        how = config.evaluation
        tokens = how.tasks * (1 + how.samples) * config.sampling.max_new_tokens
        policy = read_policy(config, problems, terminal, tokens=tokens)
        title = config.model.path
        if Path(source).is_dir():
            title = str(restore(config, policy, Path(source), terminal))
        session = Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
        return asyncio.run(session.evaluate_held_out(problems.evaluation, how, title))


def _refuse_trained_problems(run: RunConfig, asked: RunConfig) -> None:
    """Raises RecipeError when problems that the run has trained on would be called held out."""
    held_out = run.evaluation.tasks if run.evaluation else 0
    more = asked.evaluation is not None and asked.evaluation.tasks > held_out
    if more and (asked.tasks, asked.prompt) == (run.tasks, run.prompt):
        raise RecipeError(
            f"evaluation.tasks = {asked.evaluation and asked.evaluation.tasks}, but the run held {held_out} "
            f"problems out and trained on the rest; name other problems, for example tasks.path=FILE"
        )
