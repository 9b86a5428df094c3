"""What a run has behind it when it begins or goes on; a new run has nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turnpoint.commands.origin import Origin, check_model
from turnpoint.commands.saving import Position
from turnpoint.errors import DataError, RunFolderError
from turnpoint.reports.cut import cut_lines, step_of_row
from turnpoint.reports.run_log import RunFolder, read_evaluations, read_metrics
from turnpoint.rollout.evaluate import Evaluation
from turnpoint.rollout.recorder import step_of_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of the steps before; `history` and `evaluations` grow with the run."""

    history: list[Mapping[str, float]]  # figures of each step; groups of a long run would not fit
    evaluations: dict[int, Evaluation]  # by step, 0 before training


def take_up(folder: RunFolder, begun: Position, origin: Origin, *, source: str) -> Past:
    """Returns what the run in `folder` has behind it at `begun`, and cuts off what came after that.

    `source` names the model. Raises DataError when the problems are not those that the run began with, and
    ModelError when the model is not, before anything is cut; RunFolderError when a file cannot be read or
    cut.
    """
    if folder.recipe.exists():
        then = Origin.read(folder)
        _check_problems(folder, then, origin)
        check_model(then, origin.model, source=source, run=folder.path)
    else:
        origin.write(folder)
    for path in (folder.metrics, folder.evaluations):
        cut_lines(path, after=begun.step, step_of=step_of_row)
    cut_lines(folder.rollouts, after=begun.step, step_of=step_of_group)
    return Past(
        history=[record.metrics for record in read_metrics(folder.metrics)]
        if folder.metrics.exists()
        else [],
        evaluations=read_evaluations(folder.evaluations),
    )


def _check_problems(folder: RunFolder, then: Origin, now: Origin) -> None:
    if then.problems is None or now.problems is None:
        raise RunFolderError(f"{folder.path} is a run of turnpoint sft, which cannot go on")
    if change := then.problems.change(now.problems):
        raise DataError(
            f"the problems are not those that {folder.path} began with: {change}; bring the old ones back, "
            f"or start a new run"
        )
