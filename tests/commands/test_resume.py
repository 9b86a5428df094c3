"""A run that stops and goes on is the run that never stopped, bit for bit, or the user is told why not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import turnpoint as tp
from tests.commands.interrupted import EVERY, Killed, die_at, three_steps
from tests.runs import assert_same_run, picture_after_every_write, rollouts, rows, state_bytes
from turnpoint.commands import saving
from turnpoint.errors import RunFolderError, TrainingError
from turnpoint.rollout import Evaluation
from turnpoint.rollout.sampler import Sampler
from turnpoint.training import Trainer, latest_checkpoint, load_checkpoint
from turnpoint.training.loop import Loop


def untimed(evaluation: Evaluation | None) -> Any:
    assert evaluation is not None
    return {key: value for key, value in evaluation.to_json().items() if key != "seconds"}


def killed(recipe: Path) -> Path:
    """Six steps that come to their end before; returns the run folder."""
    with pytest.raises(Killed):
        tp.train(tp.load_recipe(recipe, ["training.steps=6", *EVERY]))
    return recipe.parent / "runs" / "tiny"


# --- the same run -------------------------------------------------------------------------------


def test_three_steps_and_three_are_six(run: Path, whole: Path) -> None:
    first = tp.resume(run)  # complete, and left as it is
    result = tp.resume(run, ["training.steps=6"])
    assert first.folder == result.folder == run
    assert_same_run(run, whole)
    versions = {
        int(name.partition("/")[0]): {segment.policy_version for segment in tree.segments[1:]}
        for name, (_, tree, _, _) in rollouts(run).items()
    }
    assert versions == {step: {step - 1} for step in range(1, 7)}
    assert untimed(result.before) == untimed(first.before)
    assert [row["step"] for row in rows(run / "evaluations.jsonl")] == [0, 3, 6]
    assert result.after is not None


@pytest.mark.slow
def test_a_run_killed_after_any_write_becomes_the_run_that_was_not(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a schedule, masters of another type, and checkpoints rarer than evaluations. About 20 s."""
    changes = [
        "training.steps=3",
        "training.save_every=2",
        "evaluation.every=1",
        "optimizer.schedule=cosine",
        "optimizer.warmup_steps=1",
        "optimizer.weight_decay=0.1",
        "model.dtype=bfloat16",
    ]
    with monkeypatch.context() as patched:
        picture_after_every_write(patched, tmp_path / "pictures")
        run = tp.train(tp.load_recipe(recipe, changes)).folder
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert len(pictures) == 1 + 3 * 5 + 4 + 2
    for picture in pictures:
        tp.resume(picture)
        assert_same_run(picture, run)


def test_ctrl_c_within_a_step_saves_the_step_before_with_its_place_in_the_data(
    recipe: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def within_step_5(_sampler: Sampler, _task: object, _completion: object, name: str) -> bool:
        return name.startswith("5/2")

    with monkeypatch.context() as patched:
        die_at(patched, Sampler, "_verify", within_step_5)
        run = killed(recipe)
    saved = latest_checkpoint(run / "checkpoints")
    assert saved is not None
    assert load_checkpoint(saved).step == 4
    tp.resume(run)
    assert_same_run(run, whole)


def test_the_place_in_the_data_is_what_was_drawn_not_what_steps_begin_with(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Loop.step

    async def hungry(loop: Loop, index: int) -> Any:
        loop.stream.take(1 + index)  # as a step does that draws again
        return await step(loop, index)

    monkeypatch.setattr(Loop, "step", hungry)
    run = tp.train(tp.load_recipe(recipe, ["training.steps=4", "evaluation=null"])).folder
    parts = tp.train(tp.load_recipe(recipe, ["training.steps=2", "evaluation=null"])).folder
    tp.resume(parts, ["training.steps=4"])
    assert rollouts(parts) == rollouts(run)
    assert state_bytes(parts) == state_bytes(run)


def test_moments_and_steps_are_there_before_the_first_step(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = latest_checkpoint(run / "checkpoints")
    assert saved is not None
    seen: dict[str, torch.Tensor] = {}

    def look(loop: Loop, _index: int) -> bool:
        seen.update({name: tensor.clone() for name, tensor in loop.trainer.state_dict().items()})
        return True

    die_at(monkeypatch, Loop, "step", look)
    with pytest.raises(Killed):
        tp.resume(run, ["training.steps=6"])
    state = load_checkpoint(saved).state
    assert seen.keys() == state.keys()
    assert all(torch.equal(seen[name], tensor) for name, tensor in state.items())
    moments = [tensor for name, tensor in seen.items() if name.startswith(("exp_avg.", "exp_avg_sq."))]
    assert moments
    assert all(moment.any() for moment in moments)
    assert int(seen["steps"]) == 3


# --- where it goes on from ----------------------------------------------------------------------


def test_the_checkpoint_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    tp.resume(run, ["training.steps=4"])
    named = f"{run} goes on after step 3 of 4, from checkpoint {run / 'checkpoints' / 'step-00000003'}"
    assert named in capsys.readouterr().out.splitlines()


def test_without_a_checkpoint_it_begins_again_but_does_not_repeat_the_evaluation(
    recipe: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_yet(*_: object) -> Path:
        return Path()

    def third_step(_loop: Loop, index: int) -> bool:
        return index == 2

    with monkeypatch.context() as patched:
        patched.setattr(saving, "save_checkpoint", not_yet)
        die_at(patched, Loop, "step", third_step)
        run = killed(recipe)
    assert len(rows(run / "metrics.jsonl")) == 2
    capsys.readouterr()
    result = tp.resume(run)
    said = capsys.readouterr().out
    assert "goes on after step 0 of 6, from its beginning: it has no complete checkpoint yet" in said
    assert "before training: 4 problems" not in said
    assert_same_run(run, whole)
    assert result.before is not None


def test_a_torn_evaluation_is_made_again(
    recipe: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def first_step(*_: object) -> bool:
        return True

    with monkeypatch.context() as patched:
        die_at(patched, Loop, "step", first_step)
        run = killed(recipe)
    path = run / "evaluations.jsonl"
    os.truncate(path, path.stat().st_size - 1)
    capsys.readouterr()
    tp.resume(run)
    assert "before training: 4 problems" in capsys.readouterr().out
    assert_same_run(run, whole)


@pytest.mark.parametrize("damage", ["torn state", "flipped bit", "no header"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    broken = run / "checkpoints" / "step-00000003"
    state, header = broken / "state.safetensors", broken / "checkpoint.json"
    match damage:
        case "torn state":
            os.truncate(state, state.stat().st_size // 2)
        case "flipped bit":
            content = bytearray(state.read_bytes())
            content[-5] ^= 1
            state.write_bytes(content)
        case _:
            header.unlink()
    capsys.readouterr()
    tp.resume(run, ["training.steps=6"])
    said = capsys.readouterr().out
    assert f"checkpoint {broken} cannot be read" in said
    assert "skipped" in said
    assert f"goes on after step 2 of 6, from checkpoint {run / 'checkpoints' / 'step-00000002'}" in said
    assert_same_run(run, whole)


def test_evaluation_and_export_take_the_checkpoint_before_a_damaged_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoints" / "step-00000003" / "checkpoint.json").unlink()
    assert tp.evaluate(run)
    said = capsys.readouterr().out
    assert f"checkpoint {run / 'checkpoints' / 'step-00000003'} cannot be read" in said
    assert f"{run / 'checkpoints' / 'step-00000002'}: 4 problems" in said


def test_a_checkpoint_that_only_holds_weights_is_refused(run: Path) -> None:
    header = run / "checkpoints" / "step-00000003" / "checkpoint.json"
    content = json.loads(header.read_text())
    header.write_text(json.dumps({**content, "metadata": {}}))
    with pytest.raises(RunFolderError, match="does not tell 'tasks': it can be evaluated and exported"):
        tp.resume(run, ["training.steps=6"])


# --- what keeps it from being exact is said -----------------------------------------------------


def test_a_step_that_failed_half_way_is_kept_and_said(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    optim_step = Trainer.optim_step

    def fails(trainer: Trainer) -> Any:
        metrics = optim_step(trainer)
        if int(trainer.state_dict()["steps"]) == 3:
            raise TrainingError("the second update of the batch failed")
        return metrics

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "optim_step", fails)
        with pytest.raises(TrainingError):
            three_steps(recipe)
    run = recipe.parent / "runs" / "tiny"
    capsys.readouterr()
    tp.resume(run)
    assert "was saved when step 3 failed half-way" in capsys.readouterr().out
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [1, 2, 3]


def test_another_machine_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "environment.json"
    environment = json.loads(path.read_text())
    environment["packages"]["torch"] = "1.0"
    path.write_text(json.dumps(environment))
    tp.resume(run, ["training.steps=4"])
    assert f"torch 1.0 then, {torch.__version__} now: the last bits may differ" in capsys.readouterr().out
    path.write_text(json.dumps({**environment, "packages": ["torch"]}))
    tp.resume(run, ["training.steps=5"])
    assert f"torch None then, {torch.__version__} now; " in capsys.readouterr().out


def test_figures_that_are_lost_are_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.jsonl").unlink()
    tp.resume(run, ["training.steps=4"])
    assert "tells of 0 of 3 steps; the others are lost" in capsys.readouterr().out
