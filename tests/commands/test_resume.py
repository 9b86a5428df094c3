"""A run that stops and goes on is the run that never stopped, bit for bit, or the user is told why not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

import turnpoint as tp
from tests.recipe import write_tiny_recipe
from tests.runs import assert_same_run, picture_after_every_write, rollouts, rows, state_bytes
from turnpoint.commands import saving
from turnpoint.errors import DataError, ModelError, RecipeError, RunFolderError, TrainingError
from turnpoint.reports.run_lock import locked
from turnpoint.rollout import Evaluation
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.training import Trainer, latest_checkpoint, load_checkpoint
from turnpoint.training.loop import Loop

EVERY = ["evaluation.every=3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """Six steps that nothing interrupts, evaluated before, after three, and after."""
    recipe = write_tiny_recipe(tmp_path_factory.mktemp("whole") / "recipe.yaml", model=tiny_folder)
    return tp.train(tp.load_recipe(recipe, ["training.steps=6", *EVERY])).folder


def three_steps(recipe: Path, *overrides: str) -> Path:
    return tp.train(tp.load_recipe(recipe, ["training.steps=3", *EVERY, *overrides])).folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The first three of those steps, with a checkpoint after each."""
    recipe = write_tiny_recipe(tmp_path_factory.mktemp("stopped") / "recipe.yaml", model=tiny_folder)
    return three_steps(recipe, "training.save_every=1")


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of them to go on with."""
    return shutil.copytree(stopped, tmp_path / "run")


def untimed(evaluation: Evaluation | None) -> Any:
    assert evaluation is not None
    return {key: value for key, value in evaluation.to_json().items() if key != "seconds"}


class Killed(BaseException):
    """Nothing that any code here catches."""


def die_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool]) -> None:
    """Calls of `owner.name` raise `Killed` from the first on for which `when(*arguments)` is true."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            raise Killed
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


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
    def within_step_5(_rollouter: Rollouter, _task: object, _completion: object, name: str) -> bool:
        return name.startswith("5/2")

    with monkeypatch.context() as patched:
        die_at(patched, Rollouter, "_verify", within_step_5)
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


# --- what may change, and what may not ----------------------------------------------------------


def files(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("loss.clip_low=0.1", "loss.clip_low: a run that goes on keeps its recipe"),
        ("seed=1", "seed: a run"),
        ("rollout.prompts_per_step=2", "rollout.prompts_per_step: a run"),
        ("optimizer.learning_rate=0.02", "optimizer.learning_rate: a run"),
        ("output_dir=elsewhere", "output_dir: a run"),
        ("evaluation=null", "evaluation"),
        ("evaluation.samples=1", "evaluation.samples: a run"),
        ("kl={coef: 0.1}", "kl"),
        ("training.steps=2", "training.steps = 2: "),
        ("training.stesp=9", "did you mean training.steps"),
    ],
)
def test_what_decided_the_past_cannot_be_changed(run: Path, override: str, words: str) -> None:
    before = files(run)
    with pytest.raises(RecipeError) as caught:
        tp.resume(run, [override])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(run) == before


def test_what_decides_nothing_about_the_past_can_be_changed_and_is_kept(run: Path) -> None:
    changes = [
        "training.steps=5",
        "training.save_every=2",
        "training.mismatch_tolerance=0.2",
        "evaluation.every=4",
        "trackers.tensorboard={}",
        "seed=0",  # no change
    ]
    tp.resume(run, changes)
    kept = tp.load_recipe(run / "recipe.yaml")
    assert (kept.training.steps, kept.training.save_every, kept.training.mismatch_tolerance) == (5, 2, 0.2)
    assert kept.trackers.tensorboard is not None
    assert [row["step"] for row in rows(run / "evaluations.jsonl")] == [0, 3, 4, 5]
    assert {path.name for path in (run / "checkpoints").iterdir()} == {f"step-{n:08d}" for n in range(1, 6)}


def test_more_steps_would_have_changed_a_schedule_that_falls(recipe: Path) -> None:
    run = three_steps(recipe, "optimizer.schedule=cosine")
    with pytest.raises(
        RecipeError, match=r"training\.steps = 6: the cosine schedule .* falls to zero after 3"
    ):
        tp.resume(run, ["training.steps=6"])


def test_a_complete_run_is_left_as_it_is(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = tp.train(tp.load_recipe(recipe, ["training.steps=1"]))
    before = files(first.folder)
    capsys.readouterr()
    result = tp.resume(first.folder)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{first.folder} is complete: 1 of 1 steps; for more: turnpoint train")
    assert files(first.folder) == before
    assert result == first


def test_what_only_lacks_its_last_evaluation_gets_it(recipe: Path, whole: Path) -> None:
    run = shutil.copytree(whole, recipe.parent / "copy")
    path = run / "evaluations.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    tp.resume(run)
    assert_same_run(run, whole)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("answer", "12 problems to train on as then, but other content or another order"),
        ("question", "12 problems to train on as then, but other content or another order"),
        ("order", "12 problems to train on as then, but other content or another order"),
        ("more", "12 problems to train on then, 13 now"),
        ("fewer", "12 problems to train on then, 11 now"),
        ("held out", "4 problems to evaluate as then, but other content or another order"),
    ],
)
def test_other_problems_are_refused(run: Path, change: str, words: str) -> None:
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    problems = [json.loads(line) for line in Path(recipe["tasks"]["path"]).read_text().splitlines()]
    match change:
        case "answer":
            problems[0]["answer"] = "17"
        case "question":
            problems[0]["question"] += " "
        case "order":
            problems[0], problems[1] = problems[1], problems[0]
        case "more":
            problems.insert(0, {"question": "9 + 9 =", "answer": "18"})
        case "fewer":
            del problems[0]
        case _:
            problems[-1]["answer"] = "17"
    (run.parent / "sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    before = files(run)
    with pytest.raises(DataError) as caught:
        tp.resume(run, ["training.steps=6", f"tasks.path={run.parent / 'sums.jsonl'}"])
    assert f"are not those that {run} began with: {words}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(run) == before


def test_problems_and_model_can_move(run: Path, whole: Path) -> None:
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    problems = shutil.copy(recipe["tasks"]["path"], run.parent / "moved.jsonl")
    model = shutil.copytree(recipe["model"]["path"], run.parent / "moved")
    tp.resume(run, ["training.steps=6", f"tasks.path={problems}", f"model.path={model}"])
    assert_same_run(run, whole)


def test_another_model_is_refused(run: Path) -> None:
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    model = shutil.copytree(recipe["model"]["path"], run.parent / "other")
    state = safetensors.torch.load_file(model / "model.safetensors")
    state["model.norm.weight"][0] += 1
    safetensors.torch.save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    before = files(run)
    with pytest.raises(ModelError, match=r"other does not hold the weights that .*run began with") as caught:
        tp.resume(run, ["training.steps=6", f"model.path={model}"])
    assert "\n" not in str(caught.value)
    assert files(run) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 7}, "seed: a run that goes on keeps its recipe"),
        ({"optimizer": {"learning_rate": 1.0}}, "optimizer.learning_rate: a run that goes on keeps"),
    ],
)
def test_a_recipe_that_was_edited_is_refused(run: Path, change: dict[str, Any], words: str) -> None:
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(yaml.safe_dump({**recipe, **change}))
    before = files(run)
    with pytest.raises(RecipeError, match=words):
        tp.resume(run, ["training.steps=6"])
    assert files(run) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "not what turnpoint writes: model: Field required; bring the file back"),
        ("[]", "expected an object, got list"),
        ("{", "not JSON"),
        ('{"model": 7, "recipe": {}}', "not what turnpoint writes: model: "),
        ('{"model": "7", "recipe": {}, "problems": {"train": 3}}', "not what turnpoint writes: problems."),
        (None, "No such file"),
    ],
)
def test_a_run_that_does_not_know_how_it_began_is_refused(run: Path, content: str | None, words: str) -> None:
    path = run / "origin.json"
    path.write_text(content) if content is not None else path.unlink()
    before = files(run)
    with pytest.raises(RunFolderError) as caught:
        tp.resume(run, ["training.steps=6"])
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "\n" not in str(caught.value)
    assert files(run) == before


@pytest.mark.parametrize("which", ["state.safetensors", "checkpoint.json"])
def test_without_a_checkpoint_that_can_be_read_nothing_begins_anew(run: Path, which: str) -> None:
    for path in (run / "checkpoints").iterdir():
        (path / which).write_bytes(b"")
    before = files(run)
    with pytest.raises(
        RunFolderError, match=r"none of the checkpoints in .* can be read; nothing was changed"
    ):
        tp.resume(run, ["training.steps=6"])
    assert files(run) == before


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": "many"},
        {"tasks": 10**30},
        {"tasks": -1},
        {"tasks": 1.5},
        {"updates": None},
        {"updates": True},
    ],
)
def test_a_checkpoint_that_tells_nonsense_is_refused(run: Path, change: dict[str, Any]) -> None:
    path = run / "checkpoints" / "step-00000003" / "checkpoint.json"
    header = json.loads(path.read_text())
    header["metadata"] |= change
    path.write_text(json.dumps(header))
    before = files(run)
    with pytest.raises(RunFolderError, match="is no count") as caught:
        tp.resume(run, ["training.steps=6"])
    assert "\n" not in str(caught.value)
    assert files(run) == before


def test_a_folder_in_use_is_refused(run: Path) -> None:
    with (
        locked(run),
        pytest.raises(RunFolderError, match=f"in use by another turnpoint, process {os.getpid()}"),
    ):
        tp.resume(run, ["training.steps=6"])
    tp.resume(run, ["training.steps=4"])


def test_a_new_run_is_in_use_from_its_beginning(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def try_it(loop: Loop, _index: int) -> bool:
        with pytest.raises(RunFolderError) as caught:
            tp.resume(loop.folder.path)
        refused.append(str(caught.value))
        return False

    die_at(monkeypatch, Loop, "step", try_it)
    three_steps(recipe)
    assert len(refused) == 3
    assert all("is in use by another turnpoint" in line for line in refused)


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
    assert f"torch None then, {torch.__version__} now: the last bits may differ" in capsys.readouterr().out


def test_figures_that_are_lost_are_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.jsonl").unlink()
    tp.resume(run, ["training.steps=4"])
    assert "tells of 0 of 3 steps; the others are lost" in capsys.readouterr().out
