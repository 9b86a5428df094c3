"""`turnpoint report`: a run as one page that needs nothing but a browser."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from turnpoint.config import RunConfig, load_run_recipe
from turnpoint.credit import GroupAdvantage
from turnpoint.errors import ModelError, RunFolderError
from turnpoint.models.locate import model_folder
from turnpoint.models.pretrained import read_tokenizer
from turnpoint.objective import make_advantage
from turnpoint.reports.draft_facts import read_facts
from turnpoint.reports.page.build import Built, PageBuilder, check_place
from turnpoint.reports.page.head import sft_head, train_head
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import (
    StepRecord,
    read_evaluations,
    read_held_out,
    read_metrics,
    read_notes,
)
from turnpoint.reports.teacher_words import read_said
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import plural, which_steps
from turnpoint.rollout.recorder import read_groups


def report(run: str | Path, out: str | Path | None = None) -> Path:
    """Writes the page of the run folder `run` to `out` (default: report.html in it) and returns where it is.

    The run may be going on. Raises RunFolderError when there is no run, nothing to show yet, a line that
    cannot be read, or no place to write.
    """
    folder = RunFolder(path=Path(run))
    if not folder.recipe.is_file():
        missing = "is a file" if folder.path.exists() else "is not there"
        what = "holds no recipe.yaml" if folder.path.is_dir() else missing
        raise RunFolderError(f"{run} is no run folder: it {what}; give one that turnpoint train or sft made")
    place = folder.path / "report.html" if out is None else Path(out)
    check_place(place)
    terminal = Terminal()
    config = load_run_recipe(folder.recipe)
    notes: list[str] = []
    steps = read_metrics(folder.metrics, torn=notes.append) if folder.metrics.exists() else []
    head = _head(config, folder, steps, torn=notes.append)
    if not (steps or head["evaluations"] or folder.rollouts.exists()):
        raise RunFolderError(f"{run} has nothing to show yet: no step, no evaluation, no rollout")
    builder = PageBuilder(make_advantage(config) if isinstance(config, RunConfig) else GroupAdvantage())
    notes += [f"after step {step}: {text}" for step, text in read_notes(folder.notes)]
    shown, torn = _read_groups(builder, folder, terminal)
    notes += torn
    if isinstance(config, RunConfig):
        notes += _without_groups({step.step for step in steps} - shown, folder)
    tokenizer = None
    if folder.rollouts.exists():
        tokenizer, why_not = _tokenizer(config.model.path)
        notes += why_not
    with terminal.phase("writing the page"):
        built = builder.write(place, head, tokenizer=tokenizer, notes=notes)
    _say(terminal, built)
    return built.path


def _head(
    config: Any, folder: RunFolder, steps: Sequence[StepRecord], torn: Callable[[str], None]
) -> dict[str, Any]:
    if isinstance(config, RunConfig):
        drafts = read_facts(folder.drafts)
        return train_head(config, steps, read_evaluations(folder.evaluations, torn=torn), drafts)
    return sft_head(config, steps, read_held_out(folder.held_out, torn=torn))


def _read_groups(builder: PageBuilder, folder: RunFolder, terminal: Terminal) -> tuple[set[int], list[str]]:
    """Returns the steps of the groups, and what is to be said of the file: a torn last line."""
    if not folder.rollouts.exists():
        return set(), []
    steps: set[int] = set()
    notes: list[str] = []
    said = read_said(folder.teachers, torn=notes.append)
    with warnings.catch_warnings(record=True) as told, terminal.phase("reading rollouts") as phase:
        warnings.simplefilter("always")
        for group in read_groups(folder.rollouts):
            step = _step(group.id)
            if (word := said.get(group.id)) is not None:
                word.check(group, path=folder.teachers)
            builder.add(group, step=step, said=word)
            steps.add(step)
            phase.advance(len(group.members), sum(map(len, group.tree.segments)))
    return steps, [*notes, *(str(warning.message) for warning in told)]


def _step(group_id: str) -> int:
    found = re.match(r"([0-9]{1,15})/", group_id)
    return int(found[1]) if found else 0


def _without_groups(steps: Collection[int], folder: RunFolder) -> list[str]:
    if not steps:
        return []
    what = "holds none of theirs" if folder.rollouts.exists() else "is not there"
    return [f"no groups of {which_steps(steps)} to show: {folder.rollouts} {what}"]


def _tokenizer(path: str) -> tuple[Any | None, list[str]]:
    """Returns the tokenizer and what is to be said when there is none."""
    try:
        return read_tokenizer(model_folder(path)), []
    except ModelError as error:
        return None, [f"tokens are shown by their ids: {error}"]


def _say(terminal: Terminal, built: Built) -> None:
    for note in built.notes:
        terminal.line(f"  ! {note}", "yellow")
    terminal.line(
        f"{built.path}: {plural(built.groups, 'group')}, {plural(built.rollouts, 'rollout')}, "
        f"{built.size / 1e6:.1f} MB; open it in a browser, it needs no network"
    )
