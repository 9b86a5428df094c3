"""A run's files: what is written can be read, also after a crash."""

import importlib.metadata
import json
import math
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reports.samples import make_evaluation, make_group
from turnpoint.config import load_recipe, parse_recipe
from turnpoint.errors import RunFolderError
from turnpoint.metrics import Max, Mean, Quantile, Sum
from turnpoint.reports.environment import describe_environment
from turnpoint.reports.findings import FindingLimits
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_evaluations, read_lines, read_metrics, read_notes
from turnpoint.reports.step import StepReport, make_step_report
from turnpoint.rollout.evaluate import Attempt, Outcome
from turnpoint.types import FinishReason, Verdict


def report_of(step: int) -> StepReport:
    return make_step_report(
        step=step,
        groups=[make_group([0.0, 0.0], lengths=[3, 4])],
        trainer_metrics={"loss": Mean(0.5, 2), "grad_norm": Max(math.inf), "entropy": Mean.of([])},
        seconds={"rollouts": 6.0, "training": 1.0},
        wall_seconds=10.0,
        limits=FindingLimits(max_new_tokens=256, clip_low=0.2, clip_high=0.28, mismatch_tolerance=0.1),
        first=step == 1,
    )


def test_a_fresh_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "demo")
    assert folder.path == tmp_path / "runs" / "demo"
    assert folder.checkpoints.is_dir()
    assert folder.rollouts == folder.path / "rollouts.jsonl"
    assert folder.note == ""


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert RunFolder.create(tmp_path, "demo").path == tmp_path / "demo"


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    paths = [RunFolder.create(tmp_path, "demo") for _ in range(3)]
    assert [folder.path.name for folder in paths] == ["demo", "demo-2", "demo-3"]
    assert paths[2].note == f"{tmp_path / 'demo'} holds another run; this one goes to {tmp_path / 'demo-3'}"


def test_a_folder_with_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    assert RunFolder.create(tmp_path, "demo").path.name == "demo-2"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"Not a directory; set output_dir$") as error:
        RunFolder.create(tmp_path / "file", "demo")
    assert "\n" not in str(error.value)


def test_a_folder_that_vanished_is_one_line(tmp_path: Path) -> None:
    folder = RunFolder(path=tmp_path / "gone")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: No such file or directory$"):
        folder.append_step(report_of(1))


def test_the_recipe_comes_back_equal(tmp_path: Path) -> None:
    config = parse_recipe({"tasks": {"kind": "reasoning_gym", "name": "chain_sum"}, "seed": 7})
    folder = RunFolder.create(tmp_path, "demo")
    folder.write_recipe(config)
    assert load_recipe(folder.recipe) == config


def test_steps_come_back(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    for step in (1, 2):
        folder.append_step(report_of(step))
    first, second = read_metrics(folder.metrics)
    assert (first.step, second.step) == (1, 2)
    assert first.wall_seconds == 10.0
    assert first.seconds == {"rollouts": 6.0, "training": 1.0, "other": 3.0}
    assert first.metrics["loss"] == 0.25
    assert first.metrics["grad_norm"] == math.inf
    assert "entropy" not in first.metrics
    assert first.findings == report_of(1).findings


def test_every_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    folder.append_step(report_of(1))
    assert folder.metrics.read_text().count("\n") == 1


def test_metrics_say_their_kind_and_what_they_are_over(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    folder.append_step(report_of(1))
    metrics = json.loads(folder.metrics.read_text())["metrics"]
    assert metrics["loss"] == {"kind": "mean", "value": 0.25, "over": 2}
    assert metrics["length/finished"] == {"kind": "quantile", "value": 3.5, "q": 0.5, "over": 2}
    assert metrics["grad_norm"] == {"kind": "max", "value": "inf"}


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    for step in (1, 2):
        folder.append_step(report_of(step))
    whole = folder.metrics.read_bytes()
    for length in range(len(whole) - 40, len(whole)):
        folder.metrics.write_bytes(whole[:length])
        assert [record.step for record in read_metrics(folder.metrics)] == [1]


def test_a_line_torn_inside_a_character_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "\xe6\x97')
    assert list(read_lines(path)) == [(1, {"a": 1})]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"b"\n{"c": 3}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2 is no object: not JSON"):
        list(read_lines(path))
    path.write_text("[1]\n")
    with pytest.raises(RunFolderError, match="line 1 is no object: expected an object, got list"):
        list(read_lines(path))
    path.write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match=r"line 1 is no step: \.wall_seconds is missing"):
        read_metrics(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="No such file"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_evaluations_are_appended(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    folder.append_evaluation(0, make_evaluation([0.0, 1.0]))
    folder.append_evaluation(20, make_evaluation([1.0, 1.0]))
    rows = [row for _, row in read_lines(folder.evaluations)]
    assert [(row["step"], row["greedy"]["accuracy"]) for row in rows] == [(0, 0.5), (20, 1.0)]


def test_evaluations_come_back_equal(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    assert read_evaluations(folder.evaluations) == {}
    verdict = Verdict.scored(0.5, reason="half", feedback="almost", parts={"form": 1.0})
    attempt = Attempt(text="\ud800 7\n", tokens=4, finish=FinishReason.LENGTH, verdict=verdict)
    first = make_evaluation([0.0, "no answer"], [[0.0, 1.0], [1.0, "timeout"]])
    first = replace(
        first, outcomes=(*first.outcomes, Outcome(task_id="x", greedy=attempt, sampled=(attempt, attempt)))
    )
    last = make_evaluation([1.0, 1.0])
    folder.append_evaluation(0, first)
    folder.append_evaluation(20, last)
    with folder.evaluations.open("a") as file:
        file.write('{"step": 30')
    assert read_evaluations(folder.evaluations) == {0: first, 20: last}


@pytest.mark.parametrize("row", ["{}", '{"step": 1, "outcomes": [1]}', '{"step": 1, "outcomes": 3}'])
def test_a_line_that_is_no_evaluation_is_named(tmp_path: Path, row: str) -> None:
    (tmp_path / "evaluations.jsonl").write_text(f"{row}\n")
    with pytest.raises(RunFolderError, match=r"evaluations\.jsonl, line 1 is no evaluation"):
        read_evaluations(tmp_path / "evaluations.jsonl")


def test_a_run_that_has_begun_is_found(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    for nothing in (tmp_path / "absent", tmp_path, folder.path):
        with pytest.raises(RunFolderError, match=f"{nothing} is no run folder"):
            RunFolder.open(nothing)
    folder.write_recipe(parse_recipe({"tasks": {"kind": "reasoning_gym", "name": "chain_sum"}}))
    assert RunFolder.open(folder.path) == folder


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_recipe_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    config = parse_recipe({"tasks": {"kind": "reasoning_gym", "name": "chain_sum"}})
    folder.write_recipe(config)

    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, crash)
    with pytest.raises(RunFolderError, match=r"recipe\.yaml.*: No space left on device"):
        folder.write_recipe(config.model_copy(update={"seed": 7}))
    assert load_recipe(folder.recipe) == config


def test_what_a_run_runs_on_is_written_once_and_then_compared(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    assert folder.write_environment(device="cpu") == []
    written = folder.environment.read_text()
    assert folder.write_environment(device="cpu") == []
    assert folder.write_environment(device="cuda:0") == ["device cpu then, cuda:0 now"]
    assert folder.environment.read_text() == written
    content = json.loads(written)
    del content["packages"]["torch"]
    content["python"] = "2.7"
    folder.environment.write_text(json.dumps(content))
    assert folder.write_environment(device="cpu") == [
        f"python 2.7 then, {platform.python_version()} now",
        f"torch None then, {importlib.metadata.version('torch')} now",
    ]
    folder.environment.write_text("[")
    with pytest.raises(RunFolderError, match=r"environment\.json: not JSON"):
        folder.write_environment(device="cpu")


def test_the_environment(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    folder.write_environment(device="cpu")
    written = json.loads(folder.environment.read_text())
    assert written["device"] == "cpu"
    assert written["packages"]["torch"]
    assert written["cores"] >= 1
    assert set(written) == set(describe_environment(device="cpu"))


def test_numbers_that_json_lacks_are_words(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    report = report_of(1)
    metrics = {"a": Sum(math.nan), "b": Sum(-math.inf), "q": Quantile(0.5, (1.0,))}
    folder.append_step(
        StepReport(step=1, groups=report.groups, metrics=metrics, seconds={}, wall_seconds=0.0)
    )
    json.loads(folder.metrics.read_text(), parse_constant=pytest.fail)
    values = read_metrics(folder.metrics)[0].metrics
    assert math.isnan(values["a"])
    assert values["b"] == -math.inf


def test_notes_are_kept_in_order_and_a_torn_one_is_skipped(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "demo")
    assert read_notes(folder.notes) == []
    folder.append_note(0, "first")
    folder.append_note(3, "then")
    with folder.notes.open("a") as file:
        file.write('{"step": 4')
    assert read_notes(folder.notes) == [(0, "first"), (3, "then")]
    folder.notes.write_text('{"text": "when?"}\n')
    with pytest.raises(RunFolderError, match=r"notes\.jsonl, line 1 is no note: \.step is missing"):
        read_notes(folder.notes)
