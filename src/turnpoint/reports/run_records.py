"""What a run folder's logs hold, read back: steps, evaluations, notes; damage is named by line and field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from turnpoint._lines import Count, Finite, Number, Record, Step, an_object, read_records, silently
from turnpoint.errors import RunFolderError
from turnpoint.reports.findings import Finding
from turnpoint.reports.sft import HeldOut
from turnpoint.rollout.evaluate import Evaluation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step as metrics.jsonl tells it."""

    step: int
    wall_seconds: float
    seconds: Mapping[str, float]
    metrics: Mapping[str, float]  # values only
    findings: tuple[Finding, ...]


def read_metrics(path: str | Path, *, torn: Callable[[str], None] = silently) -> list[StepRecord]:
    """Returns the steps in a metrics.jsonl; a torn last line is skipped, and `torn` told so.

    Raises RunFolderError for a missing file, and for any other line that is no step, or not a later one than
    the line before.
    """
    return list(_by_step(Path(path), _step_record, "step", torn).values())


class _Metric(Record):
    value: Number


class _Finding(Record):
    rule: str
    text: str
    warning: bool


class _Step(Record):
    step: Step
    wall_seconds: Annotated[Finite, Field(ge=0)]
    seconds: dict[str, Number]
    metrics: dict[str, _Metric]
    findings: list[_Finding]


def _step_record(row: Any) -> tuple[int, StepRecord]:
    read = _Step.model_validate(row)
    record = StepRecord(
        step=read.step,
        wall_seconds=read.wall_seconds,
        seconds=read.seconds,
        metrics={name: metric.value for name, metric in read.metrics.items()},
        findings=tuple(Finding(rule=it.rule, text=it.text, warning=it.warning) for it in read.findings),
    )
    return read.step, record


def read_evaluations(path: Path, *, torn: Callable[[str], None] = silently) -> dict[int, Evaluation]:
    """Returns the evaluations in an evaluations.jsonl by step, none without the file.

    A torn last line is skipped, and `torn` told so. Raises RunFolderError for any other line that is no
    evaluation, or not of a later step than the line before.
    """
    return _by_step(path, _evaluation, "evaluation", torn) if path.exists() else {}


class _Note(Record):
    step: Step
    text: str


def _note(row: Any) -> tuple[int, str]:
    read = _Note.model_validate(row)
    return read.step, read.text


def read_notes(path: Path) -> list[tuple[int, str]]:
    """Returns the notes in a notes.jsonl with the steps completed by then, none without the file.

    A torn last line is skipped. Raises RunFolderError for any other line that is none.
    """
    if not path.exists():
        return []
    return [note for _, note in read_records(path, _note, what="note", torn=silently)]


class _OfStep(Record):
    step: Step


def _evaluation(row: Any) -> tuple[int, Evaluation]:
    return _OfStep.model_validate(row).step, Evaluation.from_json(row)


def read_held_out(path: Path, *, torn: Callable[[str], None] = silently) -> dict[int, HeldOut]:
    """Returns the measurements in a held_out.jsonl by step, none without the file.

    A torn last line is skipped, and `torn` told so. Raises RunFolderError for any other line that is none, or
    not of a later step than the line before.
    """
    return _by_step(path, _held_out, "measurement", torn) if path.exists() else {}


class _HeldOut(_OfStep):
    cross_entropy: Number
    tokens: Count
    examples: Count


def _held_out(row: Any) -> tuple[int, HeldOut]:
    read = _HeldOut.model_validate(row)
    measured = HeldOut(cross_entropy=read.cross_entropy, tokens=read.tokens, examples=read.examples)
    return read.step, measured


def _by_step(
    path: Path, make: Callable[[Any], tuple[int, T]], what: str, torn: Callable[[str], None]
) -> dict[int, T]:
    """Returns the records of a file by their steps, which must grow from line to line."""
    found: dict[int, T] = {}
    last = -1

    def later(row: Any) -> tuple[int, T]:
        step, record = make(row)
        if step <= last:
            raise ValueError(f".step = {step}: the line before has step {last}")
        return step, record

    try:
        for _, (last, record) in read_records(path, later, what=what, torn=torn):
            found[last] = record
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from error
    return found


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of a JSON-lines file; a torn last line is skipped.

    Raises RunFolderError for a missing file and for any other line that is no object.
    """
    try:
        yield from read_records(path, an_object, what="object", torn=silently)
    except OSError as error:
        raise RunFolderError(f"{path}: {error.strerror or error}") from error
