"""`turnpoint filter` as a user types it: what is kept, what a second call costs, mistakes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import turnpoint as tp
from tests.recipe import write_tiny_recipe
from tests.typed import Command, end, holds_lines, is_one_line, start
from turnpoint.errors import EngineError
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.rollouter import Rollouter

# Passes for gold, so that the verifier's own check is content; else by the question and the completion.
JUDGE = '''
import time

def level(completion, task):
    """Questions "a + ..." with a = 0 never pass, with a = 3 always, else where the text says so."""
    if completion == task.answer:
        return 1.0
    if completion.startswith("an altogether wrong") or task.question[0] == "0":
        return 0.0
    return 1.0 if task.question[0] == "3" else float(sum(map(ord, completion)) % 2)

def broken(completion, task):
    if completion == task.answer:
        return 1.0
    return None if "e" in completion or task.question[0] == "1" else level(completion, task)

def slow(completion, task):
    time.sleep(0.05)
    return level(completion, task)
'''


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> Path:
    path = write_tiny_recipe(tmp_path / "recipe.yaml", model=tiny_folder)
    (tmp_path / "judge.py").write_text(JUDGE)
    text = path.read_text().replace("rewards.py:vowels", "judge.py:level")
    path.write_text(text.replace("tasks: 4", "tasks: 1"))  # one problem is held out: 3 + 3
    return path


@pytest.fixture
def out(recipe: Path) -> Path:
    return recipe.parent / "kept.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def judged(out: Path) -> list[dict[str, Any]]:
    return rows(out.with_name(f"{out.name}.rates"))[1:]


def test_what_is_solved_sometimes_is_kept_in_order(turnpoint: Command, recipe: Path, out: Path) -> None:
    answer = turnpoint("filter", recipe, out, "--samples", "12", "--min", "0.01", "--max", "0.99")
    assert answer.status == 0, answer.err
    kept = rows(out)
    source = [row["question"] for row in rows(recipe.parent / "sums.jsonl")]
    assert [row["question"] for row in kept] == [q for q in source if q[0] in "12"]
    assert [row["answer"] for row in kept] == [str(a + b) for a in (1, 2) for b in range(4)]
    rates = {row["task"]: row for row in judged(out)}
    assert len(rates) == 15  # all but the held-out one
    assert all(row["valid"] == 12 for row in rates.values())
    assert [row["pass_rate"] for row in kept] == [rates[f"sums/{n}"]["passed"] / 12 for n in range(4, 12)]
    assert "27 % never solved, 20 % always, 53 % in between" in answer.out
    assert "a reward above 0.5 counts as passed" in answer.out
    trained = turnpoint(
        "train", recipe, f"tasks={{kind: jsonl, format: plain, path: {out}}}", "training.steps=1",
        "evaluation=null",
    )  # fmt: skip
    assert trained.status == 0, trained.err


def test_a_run_on_kept_problems_is_evaluated_on_problems_that_nobody_selected(
    turnpoint: Command, recipe: Path, out: Path
) -> None:
    """As docs/guide.md has it: held-out problems of the unfiltered file are neither judged nor kept."""
    few_shot = "prompt={kind: few_shot, shots: 2}"
    assert turnpoint("filter", recipe, out, few_shot, "evaluation.tasks=2", "--max", "1").status == 0
    run, exported = recipe.parent / "runs" / "kept", recipe.parent / "exported"
    train = [f"tasks={{kind: jsonl, format: plain, path: {out}}}", few_shot, "name=kept"]
    assert turnpoint("train", recipe, *train, "evaluation.tasks=2", "training.steps=1").status == 0
    assert turnpoint("export", run, exported).status == 0
    assert not {"3 + 2 =", "3 + 3 ="} & {row["question"] for row in rows(out)}
    answer = turnpoint("eval", run, f"tasks.path={recipe.parent / 'sums.jsonl'}")
    assert answer.status == 0, answer.err
    by_run = tp.evaluate(run, [f"tasks.path={recipe.parent / 'sums.jsonl'}"])
    by_export = tp.evaluate(recipe, [f"model.path={exported}", few_shot, "evaluation.tasks=2"])
    for evaluation in (by_run, by_export):
        assert [outcome.task_id for outcome in evaluation.outcomes] == ["sums/14", "sums/15"]  # the same
    texts = [[outcome.greedy.text for outcome in it.outcomes] for it in (by_run, by_export)]
    assert texts[0] == texts[1]


def test_from_python(recipe: Path, out: Path) -> None:
    result = tp.filter_tasks(tp.load_recipe(recipe), out, minimum=0.0, maximum=0.0, samples=2)
    assert (result.path, len(result.rates)) == (out, 15)
    assert [rate.rate for rate in result.rates[:4]] == [0.0] * 4
    assert result.kept == len(rows(out)) == sum(rate.rate == 0 for rate in result.rates) >= 4


def test_another_range_samples_nothing(
    turnpoint: Command, recipe: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert turnpoint("filter", recipe, out, "--samples", "4").status == 0

    async def never(*_: object, **__: object) -> None:
        raise EngineError("sampled again")

    monkeypatch.setattr(Rollouter, "group", never)
    answer = turnpoint("filter", recipe, out, "--samples", "4", "--min", "1", "--max", "1")
    assert answer.status == 0, answer.err
    assert "15 problems judged before, 0 left" in answer.out
    assert len(rows(out)) == sum(row["passed"] == 4 for row in judged(out)) >= 3


def test_a_filter_that_broke_goes_on_and_ends_as_if_it_had_not(
    turnpoint: Command, recipe: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe.parent / "whole.jsonl"
    assert turnpoint("filter", recipe, whole, "--samples", "4").status == 0
    real, calls = Rollouter.group, list[str]()

    async def breaks(self: Rollouter, task: Any, *, group_id: str) -> Any:
        calls.append(group_id)
        if len(calls) > 7:
            raise EngineError("out of memory")
        return await real(self, task, group_id=group_id)

    with monkeypatch.context() as patched:
        patched.setattr(Rollouter, "group", breaks)
        answer = turnpoint("filter", recipe, out, "--samples", "4", "engine.max_running=4")
    assert answer.status == 1
    assert not out.exists()
    before = len(judged(out)) if out.with_name("kept.jsonl.rates").exists() else 0
    assert 0 < before < 15
    assert turnpoint("filter", recipe, out, "--samples", "4").status == 0
    assert len(judged(out)) == 15
    assert rows(out) == rows(whole)


def test_invalid_rollouts_are_left_out_and_counted(turnpoint: Command, recipe: Path, out: Path) -> None:
    path = f"verifier.path={recipe.parent / 'judge.py'}:broken"
    answer = turnpoint("filter", recipe, out, path, "--samples", "6")
    assert answer.status == 0, answer.err
    assert "rollouts invalid" in answer.out
    assert "4 problems without a valid rollout, left out" in answer.out
    assert all(row["question"][0] != "1" for row in rows(out))
    assert any(0 < row["valid"] < 6 for row in judged(out))


def test_few_shot_examples_come_first_so_that_prompts_stay_the_same(
    turnpoint: Command, recipe: Path, out: Path
) -> None:
    answer = turnpoint("filter", recipe, out, "prompt={kind: few_shot, shots: 2}", "--samples", "6")
    assert answer.status == 0, answer.err
    first = rows(out)[:3]
    assert [(row["question"], row["pass_rate"]) for row in first[:2]] == [
        ("0 + 0 =", None),
        ("0 + 1 =", None),
    ]
    assert first[2]["pass_rate"] is not None
    assert "behind the 2 solved examples of the prompt" in answer.out


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--min", "0.9", "--max", "0.1"), "--min 0.9 is above --max 0.1"),
        (("--min", "-0.1"), "between 0 and 1"),
        (("--max", "1.5"), "between 0 and 1"),
        (("--min", "nan"), "between 0 and 1"),
        (("--samples", "0"), "--samples 0"),
        (("--samples", "1000000000"), "at most 4096"),
        (("--samples", "many"), "--samples"),
        (("--least", "0"), "--least"),
        (("learning_rte=1",), "learning_rte: unknown key"),
        (("model.path=/no/such/model",), "/no/such/model"),
        (("verifier.path=missing.py:reward",), "missing.py"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    turnpoint: Command, recipe: Path, out: Path, flags: tuple[str, ...], words: str
) -> None:
    assert is_one_line(turnpoint("filter", recipe, out, *flags), words)
    assert not list(recipe.parent.glob("kept*"))


def test_keeping_nothing_says_what_would_keep_something(turnpoint: Command, recipe: Path, out: Path) -> None:
    answer = turnpoint("filter", recipe, out, "--samples", "4", "--min", "0.01", "--max", "0.02")
    assert is_one_line(answer, "no problem has a pass rate between 0.01 and 0.02; of 15: ")
    assert "never solved" in answer.err
    assert "would keep" in answer.err
    assert not out.exists()


def test_rates_of_another_setting_are_refused(turnpoint: Command, recipe: Path, out: Path) -> None:
    assert turnpoint("filter", recipe, out, "--samples", "4").status == 0
    for change in ("sampling.temperature=0.5", "seed=1", "prompt.suffix=x"):
        answer = turnpoint("filter", recipe, out, "--samples", "4", change)
        assert is_one_line(answer, f"{change.partition('.')[0].partition('=')[0]} = ")
        assert "delete it, or choose another output" in answer.err


def test_rates_of_another_reward_are_refused(turnpoint: Command, recipe: Path, out: Path) -> None:
    assert turnpoint("filter", recipe, out, "--samples", "4").status == 0
    (recipe.parent / "judge.py").write_text(f"{JUDGE}\n# changed\n")
    assert is_one_line(turnpoint("filter", recipe, out, "--samples", "4"), "holds pass rates for judge = ")


def test_a_file_in_the_way_is_not_overwritten(turnpoint: Command, recipe: Path, out: Path) -> None:
    source = recipe.parent / "sums.jsonl"
    before = source.read_text()
    assert is_one_line(turnpoint("filter", recipe, source), "is what is filtered")
    assert source.read_text() == before
    other = recipe.parent / "judge.py"
    assert is_one_line(turnpoint("filter", recipe, other), "no output of turnpoint filter")
    (recipe.parent / "judge.py.rates").touch()  # proves nothing
    assert is_one_line(turnpoint("filter", recipe, other), "no output of turnpoint filter")
    assert other.read_text() == JUDGE
    assert is_one_line(turnpoint("filter", recipe, recipe.parent / "no" / "kept.jsonl"), "there is no folder")
    assert is_one_line(turnpoint("filter", recipe, recipe.parent), "is a folder")
    assert is_one_line(turnpoint("filter", recipe, ""), "is a folder")


def test_what_was_kept_is_not_overwritten_by_what_is_kept_of_it(
    turnpoint: Command, recipe: Path, out: Path
) -> None:
    assert turnpoint("filter", recipe, out, "--samples", "4").status == 0
    kept = out.read_bytes()
    answer = turnpoint("filter", recipe, out, "--samples", "4", f"tasks.path={out}")
    assert is_one_line(answer, "is what is filtered")
    assert out.read_bytes() == kept


def test_output_that_cannot_be_written_leaves_the_rates(
    turnpoint: Command, recipe: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        answer = turnpoint("filter", recipe, out, "--samples", "4")
    assert is_one_line(answer, "cannot be written: No space left on device")
    assert not out.exists()
    assert len(judged(out)) == 15


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_keeps_what_was_judged(recipe: Path, out: Path, how: signal.Signals) -> None:
    slow = f"verifier.path={recipe.parent / 'judge.py'}:slow"
    process = start("filter", recipe, out, slow, "--samples", "64", "engine.max_running=8")
    said = end(process, how, when=lambda: holds_lines(out.with_name(f"{out.name}.rates"), 3))
    assert "the same command goes on from there" in said
    assert not out.exists()
    assert len(judged(out)) >= 2


def test_a_terminal_that_fails_is_one_line(
    turnpoint: Command, recipe: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Terminal, "line", gone)
    assert turnpoint("filter", recipe, out).err == "turnpoint: [Errno 28] No space left on device\n"
