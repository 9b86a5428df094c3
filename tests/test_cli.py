"""The command as a user types it: a whole run on a tiny model, and what happens when the user errs."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from tests.runs import state_bytes
from tests.typed import Command, end, holds_lines, is_one_line, start
from turnpoint.errors import RunFolderError
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_metrics
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout import read_groups
from turnpoint.training import checkpoint
from turnpoint.training.checkpoint import latest_checkpoint, load_checkpoint


def test_a_run_trains_and_leaves_what_it_promises(
    turnpoint: Command, recipe: Path, tiny_folder: Path
) -> None:
    answer = turnpoint("train", recipe)
    assert answer.status == 0, answer.err
    assert "4 prompts x 4 samples -> 16 rollouts -> 1 update" in answer.out
    assert "engine and trainer agree" in answer.out
    assert "on-policy" in answer.out
    folder = recipe.parent / "runs" / "tiny"
    assert [step.step for step in read_metrics(folder / "metrics.jsonl")] == [1, 2]
    groups = list(read_groups(folder / "rollouts.jsonl"))
    assert sorted(group.id for group in groups) == [
        f"{step}/{index}" for step in (1, 2) for index in range(4)
    ]
    versions = {segment.policy_version for group in groups for segment in group.tree.segments[1:]}
    assert versions == {0, 1}
    evaluations = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in evaluations] == [0, 2]
    assert (folder / "recipe.yaml").exists()
    assert (folder / "environment.json").exists()

    exported = recipe.parent / "exported"
    assert turnpoint("export", folder, exported).status == 0
    before: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    after: Any = AutoModelForCausalLM.from_pretrained(exported)
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved)

    evaluated = turnpoint("eval", folder)
    assert evaluated.status == 0, evaluated.err
    assert "greedy" in evaluated.out
    assert "avg@2" in evaluated.out


def test_it_learns(turnpoint: Command, recipe: Path) -> None:
    """The golden curve: from a random model to mostly vowels; a signal that were zero could not do it."""
    answer = turnpoint(
        "train", recipe, "training.steps=25", "rollout.samples_per_prompt=8", "evaluation=null"
    )
    assert answer.status == 0, answer.err
    steps = read_metrics(recipe.parent / "runs" / "tiny" / "metrics.jsonl")
    rewards = [step.metrics["reward"] for step in steps]
    assert sum(rewards[:3]) / 3 < 0.3
    assert sum(rewards[-3:]) / 3 > 0.6
    assert all(step.metrics["grad_norm"] > 0 for step in steps[:5])
    assert "training reward rose" in answer.out


def test_the_same_recipe_gives_the_same_run_bit_for_bit(turnpoint: Command, recipe: Path) -> None:
    outputs: list[str] = []
    for _ in range(2):
        answer = turnpoint("train", recipe, "evaluation=null")
        assert answer.status == 0
        outputs.append(answer.out)
    first, second = (recipe.parent / "runs" / name for name in ("tiny", "tiny-2"))
    assert "holds another run" not in outputs[0]
    assert f"this one goes to {second}" in outputs[1]
    groups = [{group.id: group for group in read_groups(run / "rollouts.jsonl")} for run in (first, second)]
    for name, group in groups[0].items():
        assert group.tree == groups[1][name].tree
    states = [latest_checkpoint(run / "checkpoints") for run in (first, second)]
    assert states[0] is not None
    assert states[1] is not None
    assert (states[0] / "state.safetensors").read_bytes() == (states[1] / "state.safetensors").read_bytes()


def test_another_seed_gives_other_rollouts(turnpoint: Command, recipe: Path) -> None:
    for seed in (0, 1):
        assert turnpoint("train", recipe, f"seed={seed}", "training.steps=1", "evaluation=null").status == 0
    texts = [
        [member.text for group in read_groups(run / "rollouts.jsonl") for member in group.members]
        for run in (recipe.parent / "runs" / "tiny", recipe.parent / "runs" / "tiny-2")
    ]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("function", ["none", "nan", "infinite", "text"])
def test_a_reward_that_is_no_number_is_data(turnpoint: Command, recipe: Path, function: str) -> None:
    path = f"{recipe.parent / 'rewards.py'}:{function}"
    answer = turnpoint("train", recipe, f"verifier.path={path}", "training.steps=1", "evaluation=null")
    assert answer.status == 0, answer.err
    assert "100 % of rollouts invalid" in answer.out
    (step,) = read_metrics(recipe.parent / "runs" / "tiny" / "metrics.jsonl")
    assert "reward" not in step.metrics
    assert step.metrics["loss"] == 0


def test_a_reward_that_cannot_judge_any_gold_answer_is_refused(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("train", recipe, f"verifier.path={recipe.parent / 'rewards.py'}:always_none")
    assert answer.status == 2
    assert "always_none returned None" in answer.err


def test_invalid_rollouts_are_left_out_and_the_rest_trains(turnpoint: Command, recipe: Path) -> None:
    path = f"{recipe.parent / 'rewards.py'}:sometimes"
    answer = turnpoint("train", recipe, f"verifier.path={path}", "training.steps=1", "evaluation=null")
    assert answer.status == 0, answer.err
    groups = list(read_groups(recipe.parent / "runs" / "tiny" / "rollouts.jsonl"))
    valid = {member.verdict.valid for group in groups for member in group.members}
    assert valid == {True, False}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learning_rte=1", "learning_rte: unknown key; did you mean optimizer.learning_rate"),
        ("loss.objective=reinforce", "loss.objective"),
        ("training.steps=0", "training.steps"),
        ("training.steps", "expected key=value"),
        ("sampling.top_p=0.9", "whole law"),
        ("rollout.samples_per_prompt=1", "group of one"),
        ("rollout.prompts_per_step=64", "prompts_per_step = 64"),
        ("model.path=/no/such/model", "/no/such/model"),
        ("tasks.path=/no/such/rows.jsonl", "/no/such/rows.jsonl"),
        ("tasks.format=gsm8k", "####"),
        ("tasks.format=deepmath", "final_answer"),
        ("evaluation.tasks=16", "evaluation.tasks"),
        ("sampling.max_new_tokens=100000", "max_new_tokens"),
        ("model.device=nonsense", "nonsense"),
        ("verifier.path=missing.py:reward", "missing.py"),
        ("verifier.kind=reasoning_gym", "verifier"),
        ('output_dir="a\\0b"', "output_dir"),
        ("sampling.stop=['']", "sampling.stop"),
        ("optimizer.learning_rate=1e300", "learning_rate"),
        (
            "model.adapter={modules: [query]}",
            "'query' is no linear layer of the model; it has q_proj, k_proj",
        ),
        ("model.adapter={kind: saved, path: /no/such/adapter}", "adapter /no/such/adapter: there is no"),
        ("model.adapter.rank=0", "model.adapter.rank"),
        ("--no-such-option", "--no-such-option"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    turnpoint: Command, recipe: Path, override: str, words: str
) -> None:
    answer = turnpoint("train", recipe, override)
    assert answer.status == 2
    assert words in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "Traceback" not in answer.err
    assert not list((recipe.parent / "runs").glob("*"))  # nothing was spent and nothing is left behind


def test_an_adapter_needs_peft(turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    answer = turnpoint("train", recipe, "model.adapter={}")
    assert answer.status == 2
    assert answer.err == "turnpoint: model.adapter: needs peft: pip install 'turnpoint[peft]'\n"
    assert turnpoint("train", recipe, "training.steps=1", "evaluation=null").status == 0


def test_only_an_adapter_can_be_exported_alone(turnpoint: Command, recipe: Path) -> None:
    run = recipe.parent / "runs" / "tiny"
    assert turnpoint("train", recipe, "training.steps=1", "evaluation=null").status == 0
    answer = turnpoint("export", run, recipe.parent / "out", "--adapter")
    assert answer.status == 2
    assert answer.err == (
        f"turnpoint: {run} has trained all weights and has no adapter; export it without --adapter\n"
    )
    assert not (recipe.parent / "out").exists()


def test_an_adapter_is_trained_continued_and_exported(
    turnpoint: Command, recipe: Path, tiny_folder: Path
) -> None:
    first, second = (recipe.parent / "runs" / name for name in ("tiny", "tiny-2"))
    alone, merged = recipe.parent / "adapter", recipe.parent / "merged"
    answer = turnpoint("train", recipe, "model.adapter={rank: 4}", "evaluation=null")
    assert answer.status == 0, answer.err
    assert "LoRA rank 4 on 14 matrices: 4,096 parameters train" in answer.out
    assert "engine and trainer agree" in answer.out
    assert turnpoint("export", first, alone, "--adapter").status == 0
    saved = f"model.adapter={{kind: saved, path: {alone}}}"
    answer = turnpoint("train", recipe, saved, "training.steps=1")
    assert answer.status == 0, answer.err
    assert turnpoint("export", second, merged).status == 0
    assert turnpoint("eval", second).status == 0
    before: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    after: Any = AutoModelForCausalLM.from_pretrained(merged)
    kept = {name for name, weight in before.named_parameters() if weight.equal(after.get_parameter(name))}
    assert {name for name, _ in before.named_parameters() if "_proj." not in name} == kept


@pytest.mark.parametrize("command", [("eval",), ("export", "out"), ("export", "out", "--adapter")])
def test_an_adapter_is_not_put_on_another_base(
    turnpoint: Command, recipe: Path, tiny_folder: Path, command: tuple[str, ...]
) -> None:
    base = shutil.copytree(tiny_folder, recipe.parent / "base")
    answer = turnpoint("train", recipe, "model.adapter={rank: 4}", f"model.path={base}", "training.steps=1")
    assert answer.status == 0, answer.err
    state = safetensors.torch.load_file(base / "model.safetensors")
    state["model.norm.weight"][0] += 1
    safetensors.torch.save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    run, out = recipe.parent / "runs" / "tiny", recipe.parent / "out"
    name, *rest = command
    answer = turnpoint(name, run, *(out if it == "out" else it for it in rest))
    assert is_one_line(answer, f"model {base} does not hold the weights that {run} began with")
    assert not out.exists()


def test_an_empty_dataset_is_named(turnpoint: Command, recipe: Path) -> None:
    (recipe.parent / "sums.jsonl").write_text("")
    answer = turnpoint("train", recipe)
    assert answer.status == 2
    assert "sums.jsonl" in answer.err


def test_prompts_longer_than_the_context_are_refused(turnpoint: Command, recipe: Path) -> None:
    (recipe.parent / "sums.jsonl").write_text(json.dumps({"question": "1 + " * 200, "answer": "0"}) + "\n")
    answer = turnpoint("train", recipe, "rollout.prompts_per_step=1", "evaluation=null")
    assert answer.status == 2
    assert "context" in answer.err


def test_a_run_folder_that_cannot_be_written_is_refused(turnpoint: Command, recipe: Path) -> None:
    (recipe.parent / "file").write_text("in the way")
    answer = turnpoint("train", recipe, f"output_dir={recipe.parent / 'file'}")
    assert answer.status == 2
    assert "run folder" in answer.err


@pytest.mark.parametrize("command", [("eval",), ("export",), ("train",)])
def test_a_folder_that_is_no_run_is_refused(
    turnpoint: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    extra = [tmp_path / "out"] if command == ("export",) else []
    answer = turnpoint(*command, tmp_path, *extra)
    assert answer.status == 2
    assert "recipe" in answer.err


def test_a_run_folder_goes_on(turnpoint: Command, recipe: Path) -> None:
    assert turnpoint("train", recipe).status == 0
    run = recipe.parent / "runs" / "tiny"
    complete = turnpoint("train", run)
    assert complete.status == 0
    assert len(complete.out.splitlines()) == 1
    assert "is complete: 2 of 2 steps" in complete.out
    refused = turnpoint("train", run, "seed=3")
    assert refused.status == 2
    assert len(refused.err.splitlines()) == 1
    assert "seed: a run that goes on keeps its recipe" in refused.err
    more = turnpoint("train", run, "training.steps=3")
    assert more.status == 0, more.err
    assert f"goes on after step 2 of 3, from checkpoint {run}" in more.out
    assert [step.step for step in read_metrics(run / "metrics.jsonl")] == [1, 2, 3]


def test_a_full_disk_while_saving_is_one_line_and_the_run_can_go_on(
    turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ["training.save_every=1", "training.steps=3", "evaluation=null"]
    writer: Any = checkpoint.safetensors.torch
    save_file = writer.save_file

    def full_from_the_second_on(tensors: Any, path: Path) -> None:
        if "step-00000001" not in str(path):
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    with monkeypatch.context() as patched:
        patched.setattr(writer, "save_file", full_from_the_second_on)
        answer = turnpoint("train", recipe, *changes)
    run = recipe.parent / "runs" / "tiny"
    assert answer.status == 2
    assert len(answer.err.splitlines()) == 1
    assert "step-00000002 cannot be written: [Errno 28] No space left on device" in answer.err
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]
    assert turnpoint("train", run).status == 0
    assert turnpoint("train", recipe, *changes).status == 0
    assert state_bytes(run) == state_bytes(run.with_name("tiny-2"))


def test_engine_and_trainer_that_disagree_stop_before_the_weights_move(
    turnpoint: Command, recipe: Path
) -> None:
    answer = turnpoint("train", recipe, "training.mismatch_tolerance=1e-12", "evaluation=null")
    assert answer.status == 1
    assert "engine and trainer disagree" in answer.err
    folder = recipe.parent / "runs" / "tiny"
    assert len(list(read_groups(folder / "rollouts.jsonl"))) == 4  # what was paid for is kept
    assert latest_checkpoint(folder / "checkpoints") is None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_end_saves(recipe: Path, how: signal.Signals) -> None:
    """SIGTERM also where SIGINT is ignored, as in a job that a script started in the background."""
    metrics = recipe.parent / "runs" / "tiny" / "metrics.jsonl"
    ignoring = [signal.SIGINT] if how is signal.SIGTERM else []
    process = start("train", recipe, "training.steps=100000", "evaluation=null", ignoring=ignoring)
    assert "stopped after" in end(process, how, when=lambda: holds_lines(metrics, 2))
    saved = latest_checkpoint(recipe.parent / "runs" / "tiny" / "checkpoints")
    assert saved is not None
    assert int(saved.name.removeprefix("step-")) == len(read_metrics(metrics))


def test_the_version_of_help_names_the_commands(turnpoint: Command) -> None:
    answer = turnpoint("--help")
    assert answer.status == 0
    for command in ("train", "eval", "export"):
        assert command in answer.out


def test_a_command_that_is_none_is_one_line(turnpoint: Command) -> None:
    for arguments in (["trian"], ["train"], ["export", "run"]):
        answer = turnpoint(*arguments)
        assert answer.status == 2
        assert len(answer.err.splitlines()) == 1
        assert "--help" in answer.err


def test_output_that_cannot_be_written_is_one_line(
    turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Terminal, "plan", full)
    answer = turnpoint("train", recipe)
    assert answer.status == 1
    assert answer.err == "turnpoint: [Errno 28] No space left on device\n"


def test_a_step_that_cannot_be_told_of_is_saved_under_its_own_number(
    turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RunFolderError("the disk is full")

    monkeypatch.setattr(RunFolder, "append_step", full)
    assert turnpoint("train", recipe, "evaluation=null").status == 2
    saved = latest_checkpoint(recipe.parent / "runs" / "tiny" / "checkpoints")
    assert saved is not None
    loaded = load_checkpoint(saved)
    assert loaded.step == int(loaded.state["steps"]) == 1


def test_problems_that_a_run_trained_on_are_not_called_held_out(turnpoint: Command, recipe: Path) -> None:
    folder = recipe.parent / "runs" / "tiny"
    assert turnpoint("train", recipe, "training.steps=1", "evaluation=null").status == 0
    answer = turnpoint("eval", folder, "evaluation.tasks=4")
    assert answer.status == 2
    assert "evaluation.tasks = 4, but the run held 0 problems out and trained on the rest" in answer.err
    other = recipe.parent / "other.jsonl"
    other.write_text("".join(json.dumps({"question": f"{a} -", "answer": "1"}) + "\n" for a in range(9)))
    assert turnpoint("eval", folder, "evaluation.tasks=4", f"tasks.path={other}").status == 0


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_name_that_is_no_run_is_said_to_be_none(turnpoint: Command, tmp_path: Path, command: str) -> None:
    answer = turnpoint(command, tmp_path / "nope", *([tmp_path / "out"] if command == "export" else []))
    assert (answer.status, answer.err) == (
        2,
        f"turnpoint: {tmp_path / 'nope'}: no such recipe or run folder\n",
    )


def test_the_version(turnpoint: Command) -> None:
    answer = turnpoint("--version")
    assert (answer.status, answer.out) == (0, "turnpoint 0.1.0\n")
