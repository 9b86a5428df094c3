"""`turnpoint train RUN_FOLDER`: a run goes on from its latest checkpoint as if it had never stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from turnpoint.commands.common import read_problems
from turnpoint.commands.origin import Origin
from turnpoint.commands.saving import Position
from turnpoint.commands.train import Start, TrainResult, run
from turnpoint.config import RunConfig, SftConfig, load_recipe, load_run_recipe, parse_recipe
from turnpoint.errors import RecipeError, RunFolderError
from turnpoint.reports.run_lock import locked
from turnpoint.reports.run_log import RunFolder, read_evaluations
from turnpoint.reports.terminal import Terminal
from turnpoint.training.checkpoint import latest_checkpoint, load_latest

# What decides nothing about the steps that were taken. A section stands for all its keys.
_FREE = (
    "tasks.path",  # the problems themselves are compared
    "model.path",  # and so are the weights
    "model.adapter.path",
    "training.steps",
    "training.save_every",
    "training.mismatch_tolerance",
    "evaluation.every",
    "trackers",
)


def resume(folder: str | Path, overrides: Sequence[str] = ()) -> TrainResult:
    """Continues the run in `folder` from its latest complete checkpoint, or from the start without one.

    On a CPU with the same versions and number of threads, the run that results is bit for bit the one that
    nothing interrupted: weights, optimiser, rollouts, order of problems, figures. What was logged after
    the checkpoint is cut off and comes again. `overrides` can change training.steps, training.save_every,
    training.mismatch_tolerance, evaluation.every and trackers, since they decide nothing about the steps
    taken, and say where the same problems and weights lie now (tasks.path, model.path, model.adapter.path).
    A run that is complete is left as it is.

    Raises UserError, with the run as it was, when `folder` is none, is in use by another process, has other
    problems now, or other overrides are given; and as `train` does.
    """
    terminal, run_folder = Terminal(), RunFolder.open(Path(folder))
    with locked(run_folder.path):
        config = _recipe(run_folder, overrides)
        start = _start(run_folder, terminal)
        _check_steps(config, start.position.step, run_folder)
        if start.position.step == config.training.steps and _evaluated(config, run_folder):
            return _complete(config, run_folder, terminal)
        where = f"after step {start.position.step} of {config.training.steps}, from {start.source}"
        terminal.line(f"{run_folder.path} goes on {where}", "bold")
        return run(config, read_problems(config, terminal), run_folder, start, terminal)


def _recipe(run_folder: RunFolder, overrides: Sequence[str]) -> RunConfig:
    """Returns the recipe of the run with `overrides`; raises RecipeError for one that changes the past."""
    if isinstance(load_run_recipe(run_folder.recipe), SftConfig):
        raise RecipeError(
            f"{run_folder.path} is a run of turnpoint sft, which cannot go on; turnpoint export takes what "
            f"it learnt"
        )
    now = load_recipe(run_folder.recipe, overrides)
    then = parse_recipe(Origin.read(run_folder).recipe)  # recipe.yaml may have been edited since
    old, new = dict(_leaves(then.model_dump(mode="json"))), dict(_leaves(now.model_dump(mode="json")))
    changed = [key for key in {**new, **old} if old.get(key, ...) != new.get(key, ...)]
    for key in changed:
        if not any(key == free or key.startswith(f"{free}.") for free in _FREE):
            raise RecipeError(
                f"{key}: a run that goes on keeps its recipe; only {', '.join(_FREE)} can change. "
                f"For another recipe, start a new run"
            )
    schedule = now.optimizer.schedule
    if "training.steps" in changed and schedule != "constant":
        raise RecipeError(
            f"training.steps = {now.training.steps}: the {schedule} schedule of this run falls to zero after "
            f"{then.training.steps} steps; its learning rates so far would have been others. Start a new run"
        )
    return now


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value)."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast(Mapping[str, Any], value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _start(run_folder: RunFolder, terminal: Terminal) -> Start:
    found = load_latest(run_folder.checkpoints, skipped=lambda line: terminal.line(line, "yellow"))
    if found is None and (unread := latest_checkpoint(run_folder.checkpoints)):
        raise RunFolderError(
            f"none of the checkpoints in {unread.parent} can be read; nothing was changed: bring one back, "
            f"or start a new run"
        )
    if found is None:
        return Start(source="its beginning: it has no complete checkpoint yet")
    path, checkpoint = found
    try:
        position = Position.of(checkpoint)
    except KeyError as error:
        raise RunFolderError(
            f"checkpoint {path} does not tell {error}: it can be evaluated and exported, not continued"
        ) from error
    except ValueError as error:
        raise RunFolderError(f"checkpoint {path} cannot be continued: {error}") from error
    return Start(source=f"checkpoint {path}", position=position, state=checkpoint.state)


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
