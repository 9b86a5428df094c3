"""What a run that goes on may change, and what it must have kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import yaml

import turnpoint as tp
from tests.commands.interrupted import die_at, files, three_steps
from tests.runs import assert_same_run, rows
from turnpoint.errors import DataError, ModelError, RecipeError, RunFolderError
from turnpoint.reports.run_lock import locked
from turnpoint.training.loop import Loop


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
    (run.parent / "elsewhere").mkdir()
    problems = shutil.copy(recipe["tasks"]["path"], run.parent / "elsewhere")
    model = shutil.copytree(recipe["model"]["path"], run.parent / "moved")
    tp.resume(run, ["training.steps=6", f"tasks.path={problems}", f"model.path={model}"])
    assert_same_run(run, whole)


def test_another_reward_is_refused(tmp_path: Path, recipe: Path) -> None:
    run = three_steps(recipe)
    rewards = recipe.parent / "rewards.py"
    rewards.write_text(f"{rewards.read_text()}\n# changed\n")
    before = files(run)
    with pytest.raises(RecipeError, match=r"verifier\.path: the file of the reward function is not what it"):
        tp.resume(run, ["training.steps=4"])
    assert files(run) == before


def test_only_so_many_checkpoints_stay(recipe: Path) -> None:
    run = three_steps(recipe, "training.save_every=1", "training.keep=2")
    saved = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert saved == ["step-00000002", "step-00000003"]
    tp.resume(run, ["training.steps=4", "training.keep=1"])
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]


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
        ("{}", "not what turnpoint writes: .model is missing; bring the file back"),
        ("[]", "expected an object, got list"),
        ("{", "not JSON"),
        ('{"model": 7, "recipe": {}}', "not what turnpoint writes: .model = 7: should be a valid string"),
        (
            '{"model": "7", "recipe": {}, "judge": "", "problems": {"a": 3}}',
            "not what turnpoint writes: .problems.a = 3: should be an object",
        ),
        (None, "is not there"),
    ],
)
def test_a_run_that_does_not_know_how_it_began_is_refused(run: Path, content: str | None, words: str) -> None:
    path = run / "origin.json"
    path.write_text(content) if content is not None else path.unlink()
    before = files(run)
    with pytest.raises(RunFolderError) as caught:
        tp.resume(run, ["training.steps=6"])
    assert str(caught.value).startswith((f"{path}: {words}", f"{path} {words}"))
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
