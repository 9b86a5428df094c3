"""The run folder: plain files that outlive the run, readable while it runs and after it crashed.

    runs/NAME/
        origin.json         what the run began with: problems, weights and recipe, as they are known again
        recipe.yaml         the resolved recipe
        environment.json    versions, machine, device
        metrics.jsonl       one line per step: typed metrics, seconds by phase, findings
        evaluations.jsonl   one line per evaluation, problem by problem
        notes.jsonl         what keeps the run from being as it should be, if anything does
        held_out.jsonl      supervised fine-tuning: held-out cross-entropy before and after
        rollouts.jsonl      every rollout (written by the recorder)
        teachers.jsonl      what teachers said about their tokens, if there are any
        checkpoints/
        lock                held by the process that writes here

Every line is written whole and closed at once. A torn last line, left by a crash, is skipped by readers; any
other damage is named by file, line and field, and nothing is made of the file.
The first three are there whole or not at all; where there is a recipe, there are the others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from turnpoint._lines import an_object, parse
from turnpoint.config import Recipe, dump_recipe
from turnpoint.errors import RunFolderError
from turnpoint.metrics import Mean, Metric, Quantile
from turnpoint.reports.environment import describe_environment, differences
from turnpoint.reports.sft import HeldOut
from turnpoint.reports.step import StepReport
from turnpoint.reports.teacher_words import Said
from turnpoint.rollout.evaluate import Evaluation
from turnpoint.types import Json

T = TypeVar("T")

_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run's folder. All writing raises RunFolderError in one line when the disk refuses."""

    path: Path
    note: str = ""  # said when the wished name was taken

    @staticmethod
    def create(output_dir: Path, name: str) -> RunFolder:
        """Returns a fresh folder `output_dir/name`; with content in it, `name-2`, `name-3`, ... is taken.

        Raises RunFolderError when it cannot be made or written.
        """
        wished = output_dir / name
        path, number = wished, 1
        try:
            while not _claim(path):
                number += 1
                path = output_dir / f"{name}-{number}"
        except OSError as error:
            raise RunFolderError(f"run folder {path}: {_why(error)}; set output_dir") from error
        note = "" if path == wished else f"{wished} holds another run; this one goes to {path}"
        return RunFolder(path=path, note=note)

    @staticmethod
    def open(path: Path) -> RunFolder:
        """Returns the folder of a run that has begun; raises RunFolderError when `path` is none."""
        folder = RunFolder(path=path)
        if not (folder.recipe.is_file() and folder.checkpoints.is_dir()):
            raise RunFolderError(
                f"{path} is no run folder: it lacks recipe.yaml or checkpoints/; give a folder that turnpoint"
                f" train or sft has made, or a recipe"
            )
        return folder

    @property
    def origin(self) -> Path:
        """What the run began with."""
        return self.path / "origin.json"

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def environment(self) -> Path:
        """Versions, machine and device."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """One line per step."""
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One line per evaluation."""
        return self.path / "evaluations.jsonl"

    @property
    def held_out(self) -> Path:
        """One line per measurement of held-out examples, in supervised fine-tuning."""
        return self.path / "held_out.jsonl"

    @property
    def notes(self) -> Path:
        """One line per note on the run as a whole."""
        return self.path / "notes.jsonl"

    @property
    def rollouts(self) -> Path:
        """For the recorder of rollouts."""
        return self.path / "rollouts.jsonl"

    @property
    def teachers(self) -> Path:
        """One line for each group that teachers spoke about."""
        return self.path / "teachers.jsonl"

    @property
    def drafts(self) -> Path:
        """What `turnpoint draft --report` found last."""
        return self.path / "drafts.json"

    @property
    def checkpoints(self) -> Path:
        """A folder for checkpoints."""
        return self.path / _CHECKPOINTS

    def write_recipe(self, config: Recipe) -> None:
        """Writes the resolved recipe; loading it gives an equal one. It marks the folder as a run's."""
        _replace(self.recipe, dump_recipe(config))

    def write_origin(self, origin: Mapping[str, Json]) -> None:
        """Writes what the run begins with."""
        _replace(self.origin, json.dumps(origin, indent=2) + "\n")

    def read_origin(self) -> dict[str, Any]:
        """Returns what `write_origin` wrote; raises RunFolderError when it is not there or no JSON."""
        return _read_object(self.origin)

    def write_environment(self, *, device: str) -> list[str]:
        """Writes what the run runs on; in a run that goes on, returns what is not as it was when it began."""
        now = describe_environment(device=device)
        if self.environment.exists():
            return differences(_read_object(self.environment), now)
        _replace(self.environment, json.dumps(now, indent=2) + "\n")
        return []

    def flush(self) -> None:
        """Waits until the lines written so far are on the disk."""
        for path in (self.metrics, self.evaluations, self.notes, self.rollouts, self.teachers):
            if path.exists():
                _flush(path)

    def discard_if_unused(self) -> None:
        """Removes the folder when no rollout, evaluation or checkpoint has come into it."""
        if not (self.rollouts.exists() or self.evaluations.exists() or any(self.checkpoints.iterdir())):
            shutil.rmtree(self.path)

    def append_step(self, report: StepReport) -> None:
        """Adds a step to metrics.jsonl."""
        _append(self.metrics, step_json(report))

    def append_said(self, step: int, group: str, said: Said) -> None:
        """Adds what a teacher said about a group of `step` to teachers.jsonl."""
        _append(self.teachers, said.to_json(step=step, group=group))

    def append_note(self, step: int, text: str) -> None:
        """Adds a note to notes.jsonl; `step` steps were completed when it was made."""
        _append(self.notes, {"step": step, "text": text})

    def append_evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Adds an evaluation to evaluations.jsonl; `step` 0 is before training."""
        _append(self.evaluations, {"step": step, **evaluation.to_json()})

    def append_held_out(self, step: int, held_out: HeldOut) -> None:
        """Adds a measurement to held_out.jsonl; `step` 0 is before training."""
        _append(self.held_out, {"step": step, **dataclasses.asdict(held_out)})


def _claim(path: Path) -> bool:
    """Takes the folder; False when it holds something or another run is faster."""
    path.mkdir(parents=True, exist_ok=True)
    if next(path.iterdir(), None) is not None:
        return False
    try:
        (path / _CHECKPOINTS).mkdir()
    except FileExistsError:
        return False
    return True


# --- lines --------------------------------------------------------------------------------------


def step_json(report: StepReport) -> dict[str, Json]:
    """Returns a step as JSON values: metrics with their kind and what they are over."""
    return {
        "step": report.step,
        "wall_seconds": report.wall_seconds,
        "seconds": report.phases(),
        "metrics": {
            name: _metric_json(metric) for name, metric in report.metrics.items() if metric.value is not None
        },
        "findings": [
            {"rule": finding.rule, "text": finding.text, "warning": finding.warning}
            for finding in report.findings
        ],
    }


def _metric_json(metric: Metric) -> dict[str, Json]:
    described: dict[str, Json] = {"kind": type(metric).__name__.lower(), "value": metric.value}
    match metric:
        case Mean():
            return {**described, "over": metric.denominator}
        case Quantile():
            return {**described, "q": metric.q, "over": len(metric.values)}
        case _:
            return described


def _append(path: Path, row: Mapping[str, Json]) -> None:
    _write(path, json.dumps(_plain(row), allow_nan=False) + "\n", "a")


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: they are written as "nan", "inf", "-inf", which float() reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast(list[Any], value)]
    return value


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise RunFolderError(f"{path}: {_why(error)}") from error


def _replace(path: Path, text: str) -> None:
    """Writes a whole file that is there as it was before, or as it is now, and never in between."""
    beside = path.with_name(f".{path.name}-partial")
    _write(beside, text, "w")
    _flush(beside)
    try:
        beside.replace(path)
    except OSError as error:
        raise RunFolderError(f"{path}: {_why(error)}") from error


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"{path}: {_why(error)}") from error
    return parse(content, an_object, where=str(path))


def _flush(path: Path) -> None:
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise RunFolderError(f"{path}: {_why(error)}") from error


def _why(error: OSError) -> str:
    return error.strerror or str(error)
