"""`turnpoint sft` as a user types it: a cold start, what it leaves behind, what happens to mistakes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

import turnpoint as tp
from tests.recipe import write_tiny_recipe
from tests.runs import picture_after_every_write, rows, state_bytes
from tests.typed import Command, end, holds_lines, is_one_line, start
from turnpoint.commands.examples import read_solved
from turnpoint.reports.run_records import read_metrics
from turnpoint.training.checkpoint import latest_checkpoint, load_checkpoint

SUMS = [(a, b) for a in range(6) for b in range(6)]


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> Path:
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b), "work": f"{a}+{b}={a + b}"} for a, b in SUMS]
    write_rows(tmp_path, rows)
    tree: dict[str, Any] = {
        "output_dir": str(tmp_path / "runs"),
        "model": {"path": str(tiny_folder), "dtype": "float32"},
        "tasks": {"kind": "jsonl", "path": str(tmp_path / "sums.jsonl")},
        "solution": "work",
        "prompt": {"kind": "chat", "thinking": True},
        "optimizer": {"learning_rate": 0.01},
        "training": {"epochs": 2, "examples_per_step": 8},
        "held_out": 4,
    }
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_folder(recipe: Path) -> Path:
    return recipe.parent / "runs" / "sft"


def test_a_run_learns_and_leaves_what_it_promises(
    turnpoint: Command, recipe: Path, tiny_folder: Path
) -> None:
    answer = turnpoint("sft", recipe)
    assert answer.status == 0, answer.err
    assert "32 to train on, 4 held out" in answer.out
    assert "8 steps of 8 examples = 2 passes over 32 examples" in answer.out
    assert 'the first one trains "0+0=0<|end|>"' in answer.out
    assert "held-out cross-entropy" in answer.out
    folder = run_folder(recipe)
    steps = read_metrics(folder / "metrics.jsonl")
    assert [step.step for step in steps] == [*range(1, 9)]
    assert steps[-1].metrics["cross_entropy"] < steps[0].metrics["cross_entropy"] / 2
    assert "mismatch" not in steps[0].metrics
    held_out = [json.loads(line) for line in (folder / "held_out.jsonl").read_text().splitlines()]
    assert [row["step"] for row in held_out] == [0, 8]
    assert held_out[1]["cross_entropy"] < held_out[0]["cross_entropy"]
    assert held_out[0]["examples"] == 4
    assert (folder / "environment.json").exists()
    assert not (folder / "rollouts.jsonl").exists()


def test_layers_may_be_computed_again_and_it_is_said(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("sft", recipe, "training.recompute=true", "training.epochs=0.5")
    assert answer.status == 0, answer.err
    assert "seed 0, layers computed again in backward" in answer.out


def test_its_figures_reach_a_tracker(turnpoint: Command, recipe: Path) -> None:
    pytest.importorskip("tensorboard")
    answer = turnpoint("sft", recipe, "trackers.tensorboard={}")
    assert answer.status == 0, answer.err
    files = [path for path in run_folder(recipe).rglob("*tfevents*") if path.is_file()]
    assert b"cross_entropy" in b"".join(path.read_bytes() for path in files)


def test_an_adapter_alone_learns_and_is_exported(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("sft", recipe, "model.adapter.rank=2")
    assert answer.status == 0, answer.err
    assert "LoRA rank 2" in answer.out
    saved = latest_checkpoint(run_folder(recipe) / "checkpoints")
    assert saved is not None
    assert all("lora" in name for name in load_checkpoint(saved).state if name != "steps")
    adapter = recipe.parent / "adapter"
    assert turnpoint("export", run_folder(recipe), adapter, "--adapter").status == 0
    assert (adapter / "adapter_config.json").exists()


def test_what_was_learnt_can_be_exported_and_trained_on(
    turnpoint: Command, recipe: Path, tiny_folder: Path
) -> None:
    assert turnpoint("sft", recipe).status == 0
    exported = recipe.parent / "exported"
    assert turnpoint("export", run_folder(recipe), exported).status == 0
    before: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    after: Any = AutoModelForCausalLM.from_pretrained(exported)
    saved = latest_checkpoint(run_folder(recipe) / "checkpoints")
    assert saved is not None
    state = load_checkpoint(saved).state
    for name, weight in after.named_parameters():
        assert torch.equal(weight, state[f"master.{name}"])
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved)
    train = write_tiny_recipe(recipe.parent / "train.yaml", model=exported)
    trained = turnpoint("train", train, "training.steps=1", "evaluation=null")
    assert trained.status == 0, trained.err


def test_a_model_learns_to_answer_and_to_stop(turnpoint: Command, recipe: Path) -> None:
    """The cold start of a policy: after it, sampling stops by itself (B11) and says what was shown."""
    assert turnpoint("sft", recipe, "training.epochs=40", "solution=answer", "held_out=0").status == 0
    exported = recipe.parent / "exported"
    assert turnpoint("export", run_folder(recipe), exported).status == 0
    train = write_tiny_recipe(recipe.parent / "train.yaml", model=exported)
    evaluated = tp.evaluate(train, ["prompt.thinking=true"])
    assert evaluated.greedy.truncated == 0.0
    assert [outcome.greedy.text for outcome in evaluated.outcomes] == ["3", "4", "5", "6"]  # 3 + 0 to 3 + 3


def test_few_shot_prompts_learn_to_stop_at_the_separator(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("sft", recipe, "prompt={kind: few_shot, shots: 2}", "held_out=2", "solution=answer")
    assert answer.status == 0, answer.err
    assert "32 to train on, 2 held out" in answer.out
    assert 'the first one trains " 2\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"' in answer.out


def test_the_same_recipe_gives_the_same_weights_and_another_seed_others(
    turnpoint: Command, recipe: Path
) -> None:
    for seed in (0, 0, 1):
        assert turnpoint("sft", recipe, f"seed={seed}", "training.epochs=0.5").status == 0
    states: list[bytes] = []
    for name in ("sft", "sft-2", "sft-3"):
        saved = latest_checkpoint(recipe.parent / "runs" / name / "checkpoints")
        assert saved is not None
        states.append((saved / "state.safetensors").read_bytes())
    assert states[0] == states[1] != states[2]


def test_from_python(recipe: Path) -> None:
    result = tp.sft(tp.load_sft_recipe(recipe, ["training.save_every=3"]))
    assert result.before is not None
    assert result.after is not None
    assert result.after.cross_entropy < result.before.cross_entropy
    saved = sorted(path.name for path in (result.folder / "checkpoints").iterdir())
    assert saved == ["step-00000003", "step-00000006", "step-00000008"]


def test_without_held_out_examples_the_verdict_says_so(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("sft", recipe, "held_out=0")
    assert answer.status == 0, answer.err
    assert "no held-out examples" in answer.out
    assert not (run_folder(recipe) / "held_out.jsonl").exists()


def test_a_model_that_gets_worse_on_others_is_warned_about(turnpoint: Command, recipe: Path) -> None:
    rows = [{"question": f"{a}?", "answer": "aaaa", "work": "aaaa"} for a in range(32)]
    rows += [{"question": f"{a}!", "answer": "zzzz", "work": "zzzz"} for a in range(4)]
    write_rows(recipe.parent, rows)
    answer = turnpoint("sft", recipe, "training.epochs=6")
    assert answer.status == 0, answer.err
    (line,) = [line for line in answer.out.splitlines() if "held-out cross-entropy" in line]
    assert line.startswith("  ! ")
    assert "got worse" in line


# --- several solutions of a problem -------------------------------------------------------------


def write_several(recipe: Path, *, problems: int = 10) -> None:
    """Two solutions of each problem, and once more the first; the second ones stand behind all first ones."""
    works = [[f"{a}+1={a + 1}", f"1+{a} is {a + 1}"] for a in range(problems)]
    rows = [
        {"id": f"p{a}", "question": f"{a} + 1 =", "answer": str(a + 1), "work": works[a][which]}
        for which in (0, 1, 0)
        for a in range(problems)
    ]
    write_rows(recipe.parent, rows)


def test_all_solutions_of_a_problem_train_and_each_once(turnpoint: Command, recipe: Path) -> None:
    write_several(recipe)
    answer = turnpoint("sft", recipe, "held_out=0", "training.epochs=1", "training.examples_per_step=20")
    assert answer.status == 0, answer.err
    assert "sums.jsonl: 30 rows read as plain, 20 kept" in answer.out
    assert "10 rows dropped: the same prompt and solution again" in answer.out
    assert "20 to train on, 0 held out" in answer.out
    assert "these are 20 solutions of 10 problems" in answer.out
    assert "1 step of 20 examples" in answer.out


def test_no_problem_is_both_trained_on_and_held_out(recipe: Path) -> None:
    write_several(recipe)
    solved = read_solved(tp.load_sft_recipe(recipe, ["held_out=3"]))
    train, held_out = ([it.task.question for it in side] for side in (solved.train, solved.held_out))
    assert train == [f"{a} + 1 =" for a in range(7)] * 2
    assert held_out == [f"{a} + 1 =" for a in (7, 8, 9)] * 2
    ids = [each.task.id for each in (*solved.train, *solved.held_out)]
    assert len(set(ids)) == 20


def test_a_problem_that_few_shot_prompts_show_is_neither(recipe: Path) -> None:
    write_several(recipe)
    config = tp.load_sft_recipe(recipe, ["prompt={kind: few_shot, shots: 2}", "held_out=3"])
    solved = read_solved(config)
    assert solved.shots == (("0 + 1 =", "1"), ("1 + 1 =", "2"))
    assert not {"0 + 1 =", "1 + 1 ="} & {it.task.question for it in (*solved.train, *solved.held_out)}
    assert (len(solved.train), len(solved.held_out)) == (10, 6)
    assert solved.left_out == {"its problem is shown in the few-shot prompt": 2}


def test_the_plan_says_how_many_problems_are_held_out(turnpoint: Command, recipe: Path) -> None:
    write_several(recipe)
    answer = turnpoint("sft", recipe, "held_out=3")
    assert answer.status == 0, answer.err
    assert "14 to train on, 6 held out" in answer.out
    assert "these are 20 solutions of 10 problems; 3 of them are held out with all their" in answer.out


# --- rows that cannot be used -------------------------------------------------------------------


def test_what_cannot_be_used_is_left_out_counted_and_said(turnpoint: Command, recipe: Path) -> None:
    """H6 and its kin: nothing trains on nothing without a word."""
    rows: list[dict[str, Any]] = [
        {"question": f"{a} + {b} =", "answer": "x", "work": f"{a + b}"} for a, b in SUMS
    ]
    rows[0]["work"] = None
    rows[1]["work"] = "  "
    rows[2]["work"] = "7" * 300
    rows[3]["work"] = "7<|end|>8"
    del rows[4]["work"]
    write_rows(recipe.parent, rows)
    answer = turnpoint("sft", recipe)
    assert answer.status == 0, answer.err
    for said in (
        "1 example left out: work is null, not text",
        "1 example left out: work is empty",
        "1 example left out: prompt and solution are longer than the context of 256 tokens",
        "1 example left out: the solution holds a stop token",
        "1 example left out: no column work",
        "27 to train on, 4 held out",
    ):
        assert said in answer.out


def test_solutions_that_are_encoded_alone_are_said_once(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("sft", recipe, "prompt.thinking=false")
    assert answer.status == 0, answer.err
    assert answer.out.count("36 solutions tokenized apart and put behind their prompts") == 1
    assert "Harmless: prompts and solutions are whole" in answer.out


def test_more_held_out_than_there_is_says_what_was_left_out(turnpoint: Command, recipe: Path) -> None:
    """H1."""
    rows = [{"question": f"{a}?", "answer": "1", "work": None if a else "1"} for a in range(3)]
    write_rows(recipe.parent, rows)
    answer = turnpoint("sft", recipe)
    assert is_one_line(answer, "held_out = 4 leaves nothing to train on of 1 problem (2 examples left out: ")


def test_fewer_examples_than_a_step_takes_says_what_was_left_out(turnpoint: Command, recipe: Path) -> None:
    """H1."""
    rows = [{"question": f"{a}?", "answer": "1", "work": "1" if a < 3 else "1<|end|>"} for a in range(9)]
    write_rows(recipe.parent, rows)
    answer = turnpoint("sft", recipe, "held_out=0")
    assert is_one_line(answer, "training.examples_per_step = 8 but there are 3 examples")
    assert "6 examples left out: the solution holds a stop token" in answer.err


@pytest.mark.parametrize(("tail", "words"), [(9, "no example is left"), (4, "no held-out example")])
def test_nothing_usable_is_one_line(turnpoint: Command, recipe: Path, tail: int, words: str) -> None:
    works = ["1"] * (9 - tail) + ["<|end|>"] * tail
    write_rows(recipe.parent, [{"question": f"{a}?", "answer": "1", "work": w} for a, w in enumerate(works)])
    assert is_one_line(turnpoint("sft", recipe, "training.examples_per_step=1"), words)


# --- going on -----------------------------------------------------------------------------------


def assert_same(run: Path, other: Path) -> None:
    """Figures, order and weights of two runs are the same, bit for bit."""
    assert rows(run / "metrics.jsonl") == rows(other / "metrics.jsonl")
    assert rows(run / "held_out.jsonl") == rows(other / "held_out.jsonl")
    assert state_bytes(run) == state_bytes(other)


@pytest.mark.parametrize("change", ["training.epochs=0.9", "model.adapter.rank=2"])
def test_a_run_killed_after_any_write_becomes_the_run_that_was_not(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """With a falling schedule, masters of another type, and a last step of fewer examples."""
    config = tp.load_sft_recipe(
        recipe, ["training.save_every=2", "optimizer.schedule=linear", "model.dtype=bfloat16", change]
    )
    with monkeypatch.context() as patched:
        picture_after_every_write(patched, recipe.parent / "pictures")
        whole = tp.sft(config).folder
    pictures = sorted((recipe.parent / "pictures").iterdir())
    assert len(pictures) > 6
    for picture in pictures:
        tp.resume_sft(picture)
        assert_same(picture, whole)


def test_a_run_that_was_stopped_goes_on(turnpoint: Command, recipe: Path) -> None:
    run = run_folder(recipe)
    process = start("sft", recipe, "training.epochs=100000")
    said = end(process, signal.SIGINT, when=lambda: holds_lines(run / "metrics.jsonl", 2))
    assert f"to go on: turnpoint sft {run}" in said
    shutil.rmtree(run / "checkpoints" / max(path.name for path in (run / "checkpoints").iterdir()))
    assert is_one_line(
        turnpoint("sft", run, "training.epochs=1"), "training.epochs: a run that goes on keeps"
    )
    assert is_one_line(turnpoint("train", run), "is one of turnpoint sft, not of turnpoint train")
    (run / "metrics.jsonl").unlink()
    sums = recipe.parent / "sums.jsonl"
    sums.write_text(sums.read_text().replace('"0+1=1"', '"0+1=2"'))
    answer = turnpoint("sft", run)
    assert is_one_line(
        answer, f"the problems are not those that {run} began with: 32 examples to train on as"
    )


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("solution=wrok", "solution = 'wrok': sums has no such column; it has answer, work"),
        ("held_out=36", "held_out = 36 leaves nothing"),
        ("training.examples_per_step=33", "training.examples_per_step = 33 but there are 32 examples"),
        ("optimizer.warmup_steps=8", "optimizer.warmup_steps = 8 leaves nothing of the 8 steps"),
        ("training.epochs=0", "training.epochs"),
        ("training.steps=3", "training.steps: unknown key"),
        ("sampling.stop=[a]", "sampling: unknown key"),
        ("model.path=/no/such/model", "/no/such/model"),
        ("tasks.path=/no/such/rows.jsonl", "/no/such/rows.jsonl"),
        ("prompt={kind: few_shot, shots: 99}", "99 few-shot examples"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    turnpoint: Command, recipe: Path, override: str, words: str
) -> None:
    assert is_one_line(turnpoint("sft", recipe, override), words)
    assert not list((recipe.parent / "runs").glob("*"))  # nothing was spent and nothing is left behind


def test_a_recipe_of_another_command_is_told(turnpoint: Command, recipe: Path) -> None:
    (recipe.parent / "rows").mkdir()
    other = write_tiny_recipe(recipe.parent / "rows" / "train.yaml", model=Path("nowhere"))
    assert is_one_line(
        turnpoint("sft", other), f"{other} is one of turnpoint train, not of turnpoint sft: it"
    )
    for command in ("train", "eval", "doctor"):
        assert is_one_line(turnpoint(command, recipe), f"{recipe} is one of turnpoint sft, not of turnpoint")
    assert is_one_line(turnpoint("filter", recipe, recipe.parent / "out"), "is one of turnpoint sft")


def test_eval_of_a_run_without_verifier_says_the_way(turnpoint: Command, recipe: Path) -> None:
    assert turnpoint("sft", recipe, "training.epochs=0.5").status == 0
    assert is_one_line(turnpoint("eval", run_folder(recipe)), "which has no verifier: turnpoint export")


def test_export_without_a_checkpoint_is_refused(turnpoint: Command, recipe: Path) -> None:
    assert turnpoint("sft", recipe, "training.epochs=0.5").status == 0
    saved = latest_checkpoint(run_folder(recipe) / "checkpoints")
    assert saved is not None
    saved.rename(saved.parent / ".step-x")
    answer = turnpoint("export", run_folder(recipe), recipe.parent / "out")
    assert is_one_line(answer, "no complete checkpoint")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_saves(recipe: Path, how: signal.Signals) -> None:
    metrics = run_folder(recipe) / "metrics.jsonl"
    process = start("sft", recipe, "training.epochs=100000")
    assert "stopped after" in end(process, how, when=lambda: holds_lines(metrics, 2))
    saved = latest_checkpoint(run_folder(recipe) / "checkpoints")
    assert saved is not None
    checkpoint = load_checkpoint(saved)
    assert checkpoint.step == int(checkpoint.state["steps"]) == len(read_metrics(metrics))
