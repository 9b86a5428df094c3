"""What a run has behind it when it begins or goes on; a new run has nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from turnpoint.commands.origin import Origin, check_heads, check_judge, check_model, check_teachers
from turnpoint.commands.saving import Position
from turnpoint.config import RunConfig, SftConfig
from turnpoint.errors import DataError, RunFolderError
from turnpoint.models.loading import LoadedModel
from turnpoint.reports.cut import cut_lines, step_of_row
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_metrics
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.recorder import step_of_group
from turnpoint.tasks import Fingerprint
from turnpoint.tasks.fingerprint import change
from turnpoint.teachers.probe import Probe
from turnpoint.training.checkpoint import load_latest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """From where a run goes on."""

    source: str = "its beginning"  # in words
    position: Position = field(default_factory=Position)
    state: Mapping[str, Tensor] | None = None  # for `Trainer.load_state_dict`; None: the model as it is
    teachers: Mapping[str, Tensor] = field(
        default_factory=dict[str, Tensor]
    )  # for `Averages.load_state_dict`
    heads: Mapping[str, Tensor] = field(
        default_factory=dict[str, Tensor]
    )  # for `OnlineHeads.load_state_dict`


def find_start(run_folder: RunFolder, terminal: Terminal) -> Start:
    """Returns where the run in `run_folder` goes on: after its latest checkpoint that can be read.

    Later ones are named. Raises RunFolderError when there are checkpoints and none can be read, or when what
    one tells beside its state is impossible.
    """
    found = load_latest(run_folder.checkpoints, skipped=lambda line: terminal.line(line, "yellow"))
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
    return Start(
        source=f"checkpoint {path}",
        position=position,
        state=checkpoint.state,
        teachers=checkpoint.teachers,
        heads=checkpoint.heads,
    )


def take_up(
    folder: RunFolder,
    start: Start,
    config: RunConfig | SftConfig,
    model: LoadedModel,
    problems: Mapping[str, Fingerprint],
    terminal: Terminal,
    *,
    teachers: Mapping[str, str | Probe] | None = None,
) -> list[Mapping[str, float]]:
    """Returns the figures of the steps that the run in `folder` has behind it at `start`.

    A new run writes what it begins with. In one that goes on, what was logged after `start` is cut off, and
    what keeps it from being the run without interruption is said and recorded. Raises DataError when
    `problems` are not those that it began with, ModelError when `model` is not, draft heads are not, or a
    teacher's weights (`teachers`: checksums or probes by name), and RecipeError when the reward function is
    not, before anything is changed; RunFolderError when a file cannot be read, cut or written.
    """
    origin = Origin.of(config, model, problems, teachers or {})
    if folder.recipe.exists():
        _check(folder, origin, source=model.source)
    else:
        origin.write(folder)
    for path in (folder.metrics, folder.evaluations, folder.held_out, folder.notes, folder.teachers):
        cut_lines(path, after=start.position.step, step_of=step_of_row)
    cut_lines(folder.rollouts, after=start.position.step, step_of=step_of_group)
    history = [record.metrics for record in read_metrics(folder.metrics)] if folder.metrics.exists() else []
    changes = folder.write_environment(device=str(model.decoder.device))
    folder.write_recipe(config)
    for note in _notes(folder, start, config, changes, told=len(history)):
        folder.append_note(start.position.step, note)
        terminal.line(note, "yellow")
    return history


def _check(folder: RunFolder, now: Origin, *, source: str) -> None:
    then = Origin.read(folder)
    if difference := change(then.problems, now.problems):
        raise DataError(
            f"the problems are not those that {folder.path} began with: {difference}; bring the old ones "
            f"back, or start a new run"
        )
    check_model(then, now.model, source=source, run=folder.path)
    check_judge(then, now, run=folder.path)
    check_teachers(then, now, run=folder.path)
    check_heads(then, now, run=folder.path)


def _notes(
    folder: RunFolder, start: Start, config: RunConfig | SftConfig, changes: list[str], *, told: int
) -> list[str]:
    """Returns what keeps the run from being as it should be; `told` steps are in its metrics."""
    step = start.position.step
    notes = [folder.note] if folder.note else []
    if changes:
        notes.append(f"{'; '.join(changes)}: the last bits may differ from a run without interruption")
    if start.state is not None and int(start.state["steps"]) != start.position.updates:
        notes.append(
            f"{start.source} was saved when step {step + 1} failed half-way: what it had learnt is kept, so "
            f"the run will differ from one without interruption"
        )
    if step and isinstance(config, RunConfig) and _forks_as_verdicts_come(config):
        notes.append(
            "groups fork as verdicts come, so the last bits may differ from a run without interruption; a "
            "new run with rollout.branching.deterministic=true goes on bit for bit"
        )
    draft = config.engine.draft if isinstance(config, RunConfig) else None
    if step and draft is not None and (draft.adaptive or draft.tempered):
        notes.append(
            "drafts are chosen by what was measured, so rollouts may differ from those of a run without "
            "interruption; their law is the same"
        )
    if told != step:
        notes.append(f"{folder.metrics} tells of {told} of {step} steps; the others are lost")
    return notes


def _forks_as_verdicts_come(config: RunConfig) -> bool:
    """Whether how long verdicts take decides which requests share a batch."""
    return config.rollout.branching is not None and not config.rollout.branching.deterministic
