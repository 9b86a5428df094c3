"""`turnpoint doctor` as it is typed, and trackers in a run."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

import turnpoint as tp
from tests.typed import Command, start
from turnpoint.reports.run_records import read_metrics


def test_a_sound_recipe_is_told_line_by_line(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("doctor", recipe)
    assert answer.status == 0, answer.err
    lines = answer.out.splitlines()
    assert "  | <|user|>0 + 0 =<|end|><|assistant|><think></think>" in lines
    told = [line.split()[0] for line in lines if line.startswith("  ") and "  | " not in line]
    assert told.count("ok") + told.count("warning") == 13
    assert lines[-1].startswith("tiny can run:")
    assert not (recipe.parent / "runs").exists()


def test_it_is_a_function_too(recipe: Path) -> None:
    diagnosis = tp.doctor(tp.load_recipe(recipe), seconds=1.0)
    assert diagnosis.can_run
    assert tp.doctor is not sys.modules.get("turnpoint.doctor")


def test_gold_answers_that_are_all_wrong_are_refused(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("doctor", recipe, f"verifier.path={recipe.parent / 'rewards.py'}:always_none")
    assert answer.status == 2
    assert "always_none returned None" in answer.out
    assert answer.out.splitlines()[-1] == "tiny must not run: gold answers, signal"
    assert answer.err == ""


def test_engine_and_trainer_that_disagree_are_refused(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("doctor", recipe, "training.mismatch_tolerance=1e-12")
    assert answer.status == 2
    assert "engine and trainer disagree" in answer.out


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learning_rte=1", "learning_rate"),
        ("model.path=/no/such/model", "/no/such/model"),
        ("--seconds=-1", "--seconds"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    turnpoint: Command, recipe: Path, override: str, words: str
) -> None:
    answer = turnpoint("doctor", recipe, override)
    assert answer.status == 2
    assert words in answer.err
    assert len(answer.err.splitlines()) == 1


def test_dropping_long_prompts_is_a_warning_with_their_number(turnpoint: Command, recipe: Path) -> None:
    rows = recipe.parent / "sums.jsonl"
    long = {"question": "1 + " * 100, "answer": "0"}
    rows.write_text(json.dumps(long) + "\n" + rows.read_text())
    answer = turnpoint("doctor", recipe)
    assert answer.status == 0, answer.err
    (line,) = [line for line in answer.out.splitlines() if " lengths " in line]
    assert line.startswith("  warning")
    assert "1 of 13 tasks dropped" in line


def test_it_ends_at_once_when_it_is_interrupted(recipe: Path) -> None:
    settings = ("sampling.max_new_tokens=200", "rollout.samples_per_prompt=200", "--seconds=1000")
    process = start("doctor", recipe, *settings)
    assert process.stdout is not None
    while "sampling" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not (recipe.parent / "runs").exists()


# --- trackers -----------------------------------------------------------------------------------


def test_a_run_without_the_packages_of_its_trackers_goes_on(
    turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("wandb", "tensorboard.summary", "trackio"):
        monkeypatch.setitem(sys.modules, package, None)  # what Python itself does for "not importable"
    monkeypatch.setenv("TRACKIO_DIR", str(recipe.parent / "trackio"))
    names = ("wandb", "tensorboard", "trackio")
    answer = turnpoint(
        "train", recipe, *(f"trackers.{name}={{}}" for name in names), "trackers.wandb.mode=offline"
    )
    assert answer.status == 0, answer.err
    for name in names:
        assert answer.out.count(f"tracker {name} dropped: ModuleNotFoundError") == 1
    assert len(read_metrics(recipe.parent / "runs" / "tiny" / "metrics.jsonl")) == 2


WANDB = """
import json, pathlib
from types import SimpleNamespace

def Settings(**settings):
    return settings

def init(*, dir, **settings):
    rows = pathlib.Path(dir) / "wandb" / "rows.wandb"
    def log(figures):
        with rows.open("a") as file:
            file.write(json.dumps(figures) + "\\n")
    return SimpleNamespace(log=log, finish=lambda: None, define_metric=lambda *_, **__: None)
"""


def test_every_step_and_evaluation_of_a_run_reaches_a_tracker(
    turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipe.parent / "packages").mkdir()
    (recipe.parent / "packages" / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(recipe.parent / "packages")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    answer = turnpoint(
        "train", recipe, "trackers.wandb.mode=offline", "training.steps=3", "evaluation.every=2"
    )
    assert answer.status == 0, answer.err
    assert "dropped" not in answer.out
    folder = recipe.parent / "runs" / "tiny"
    rows = [json.loads(line) for line in (folder / "wandb" / "rows.wandb").read_text().splitlines()]
    assert [row["step"] for row in rows if "evaluation/majority" in row] == [0, 2, 3]
    steps = [row for row in rows if "reward" in row]
    for row, record in zip(steps, read_metrics(folder / "metrics.jsonl"), strict=True):
        assert row["step"] == record.step
        assert dict(record.metrics).items() <= row.items()
        assert row["seconds/rollouts"] == record.seconds["rollouts"]
    monkeypatch.delitem(sys.modules, "wandb")


def test_a_run_with_tensorboard_leaves_its_events(turnpoint: Command, recipe: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    answer = turnpoint("train", recipe, "trackers.tensorboard={}")
    assert answer.status == 0, answer.err
    folder = recipe.parent / "runs" / "tiny" / "tensorboard"
    assert f"tracker tensorboard: event files in {folder}" in answer.out
    assert "dropped" not in answer.out
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Tensors("reward")] == [1, 2]
    assert [event.step for event in events.Tensors("evaluation/greedy/reward")] == [0, 2]
