"""`turnpoint train RUN_FOLDER`: a run goes on from its latest checkpoint as if it had never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnpoint.commands.common import read_problems
from turnpoint.commands.origin import begun_with, changed_keys
from turnpoint.commands.past import find_start
from turnpoint.commands.train import TrainResult, run
from turnpoint.config import RunConfig, load_recipe, parse_recipe
from turnpoint.config.teachers_fit import free_keys
from turnpoint.errors import RecipeError
from turnpoint.reports.run_lock import locked
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_evaluations
from turnpoint.reports.terminal import Terminal

# What decides nothing about the steps that were taken.
_FREE = (
    "tasks.path",  # the problems themselves are compared
    "model.path",  # and so are the weights
    "model.adapter.path",
    "training.steps",
    "training.save_every",
    "training.keep",
    "training.mismatch_tolerance",
    "evaluation.every",
    "trackers",
)


def resume(folder: str | Path, overrides: Sequence[str] = ()) -> TrainResult:
    """Continues the run in `folder` from its latest complete checkpoint, or from the start without one.

    On a CPU with the same versions and number of threads, the run that results is bit for bit the one that
    nothing interrupted: weights, optimiser, rollouts, order of problems, figures. What was logged after
    the checkpoint is cut off and comes again. `overrides` can change training.steps, training.save_every,
    training.keep, training.mismatch_tolerance, evaluation.every and trackers, since they decide nothing about
    the steps taken, and say where the same problems and weights lie now (tasks.path, model.path,
    model.adapter.path, engine.draft.heads; of a teacher behind a server url, in_flight, deadline and
    tolerance). A run that is complete is left as it is.

    Raises UserError, with the run as it was, when `folder` is none, is in use by another process, has other
    problems now, or other overrides are given; and as `train` does.
    """
    terminal, run_folder = Terminal(), RunFolder.open(Path(folder))
    with locked(run_folder.path):
        config = _recipe(run_folder, overrides)
        start = find_start(run_folder, terminal)
        _check_steps(config, start.position.step, run_folder)
        if start.position.step == config.training.steps and _evaluated(config, run_folder):
            return _complete(config, run_folder, terminal)
        where = f"after step {start.position.step} of {config.training.steps}, from {start.source}"
        terminal.line(f"{run_folder.path} goes on {where}", "bold")
        return run(config, read_problems(config, terminal), run_folder, start, terminal)


def _recipe(run_folder: RunFolder, overrides: Sequence[str]) -> RunConfig:
    """Returns the recipe of the run with `overrides`; raises RecipeError for one that changes the past."""
    now = load_recipe(run_folder.recipe, overrides)
    then = begun_with(run_folder, parse_recipe)
    places = [*free_keys(then.distill)] if then.distill else []
    places += ["engine.draft.heads"] if then.engine.draft else []  # which heads they are is checked
    changed = changed_keys(then, now, free=[*_FREE, *places])
    schedule = now.optimizer.schedule
    if "training.steps" in changed and schedule != "constant":
        raise RecipeError(
            f"training.steps = {now.training.steps}: the {schedule} schedule of this run falls to zero after "
            f"{then.training.steps} steps; its learning rates so far would have been others. Start a new run"
        )
    return now


def _check_steps(config: RunConfig, done: int, run_folder: RunFolder) -> None:
    if config.training.steps < done:
        raise RecipeError(
            f"training.steps = {config.training.steps}: {run_folder.path} has taken {done} steps already"
        )


def _evaluated(config: RunConfig, run_folder: RunFolder) -> bool:
    return config.evaluation is None or config.training.steps in read_evaluations(run_folder.evaluations)


def _complete(config: RunConfig, run_folder: RunFolder, terminal: Terminal) -> TrainResult:
    steps, path = config.training.steps, run_folder.path
    terminal.line(
        f"{path} is complete: {steps} of {steps} steps; for more: turnpoint train {path} "
        f"training.steps={2 * steps}"
    )
    evaluations = read_evaluations(run_folder.evaluations)
    return TrainResult(folder=path, before=evaluations.get(0), after=evaluations.get(steps))
