"""`turnpoint inspect`: one group, on the terminal and as a page; nothing is trained or left behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import turnpoint as tp
from tests.reports.pages import blobs, overview
from tests.typed import Command, end, is_one_line, start
from turnpoint.types import BranchOrigin

FORKS = [
    "rollout.samples_per_prompt=8",
    "rollout.branching={roots: 2, continuations: [2, 1], min_gap: 2, rule: {kind: entropy}}",
    "sampling.max_new_tokens=12",
]


def test_a_group_that_forks_is_shown_and_kept_as_a_page(turnpoint: Command, recipe: Path) -> None:
    out = recipe.parent / "group.html"
    answer = turnpoint("inspect", recipe, *FORKS, "--task", "3", "--out", out)
    assert answer.status == 0, answer.err
    assert "group 0/3, problem sums/3" in answer.out
    assert answer.out.count("reward ") == 8
    assert "forks by entropy: 2 of 2 points" in answer.out
    assert "<1> at token" in answer.out
    (row,) = overview(out)["groups"]
    assert (row["id"], row["forks"]) == ("0/3", 6)
    assert len(json.loads(blobs(out)["texts-0"])["members"]) == 8
    assert not (recipe.parent / "runs").exists()


def test_a_recipe_without_forks_and_a_trained_run(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = tp.inspect(recipe)
    assert len(flat.members) == 4
    assert not any(isinstance(member.origin, BranchOrigin) for member in flat.members)
    run = tp.train(tp.load_recipe(recipe, ["evaluation=null"])).folder
    capsys.readouterr()
    assert tp.inspect(run).tree != flat.tree
    assert "weights of" in capsys.readouterr().out


def test_what_cannot_be_inspected_is_one_line(turnpoint: Command, recipe: Path) -> None:
    assert is_one_line(turnpoint("inspect", recipe, "--task", "99"), "--task 99: there are 12 problems")
    assert is_one_line(turnpoint("inspect", recipe.parent / "none"), "no such recipe or run folder")
    missing = recipe.parent / "none" / "x.html"
    assert is_one_line(turnpoint("inspect", recipe, "--out", missing), "cannot write the page")


def test_what_is_interrupted_says_so(recipe: Path) -> None:
    begun, judge = recipe.parent / "begun", recipe.parent / "slow.py"
    judge.write_text(
        f"import pathlib, time\n\ndef slow(completion, task):\n"
        f"    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(60)\n"
    )
    process = start("inspect", recipe, f"verifier.path={judge}:slow")
    assert "group" not in end(process, signal.SIGINT, when=begun.exists)
