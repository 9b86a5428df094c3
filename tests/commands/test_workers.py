"""Runs whose rollouts several processes sample: resumed bit for bit, and refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import turnpoint as tp
from tests.commands.interrupted import EVERY
from tests.runs import assert_same_run, rows
from turnpoint.assemble import load_policy, sampling_workers
from turnpoint.config import RunConfig, parse_recipe
from turnpoint.errors import RecipeError

LONG = 10**9  # tokens


@pytest.fixture
def threads() -> Iterator[int]:
    """Two threads, however many the tests have."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_a_run_by_two_workers_is_said_learns_and_goes_on_bit_for_bit(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def config(*options: str) -> RunConfig:
        return tp.load_recipe(recipe, ["engine.workers=2", "training.save_every=1", *EVERY, *options])

    whole = tp.train(config("training.steps=6", "name=whole")).folder
    assert "in 2 processes with 1 thread each" in capsys.readouterr().out
    part = tp.train(config("training.steps=3", "name=part")).folder
    tp.resume(part, ["training.steps=6"])
    assert_same_run(part, whole)
    for row in rows(whole / "metrics.jsonl"):
        metrics = row["metrics"]
        assert metrics["mismatch"]["value"] < 1e-4, "engine and trainer disagree"
        assert metrics["grad_norm"]["value"] > 0


def model_of(tiny_folder: Path, **sections: Any) -> tuple[RunConfig, Any]:
    config = parse_recipe(
        {
            "model": {"path": str(tiny_folder), "device": "cpu"},
            "tasks": {"kind": "reasoning_gym", "name": "chain_sum"},
            **sections,
        }
    )
    return config, load_policy(config, (), tokens=0).model


def test_how_many_workers_are_chosen(
    tiny_folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = model_of(tiny_folder)
    assert sampling_workers(config, model, tokens=config.sampled_tokens) == 1  # too little to do
    assert sampling_workers(config, model, tokens=LONG) == threads
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 16)
        assert sampling_workers(config, model, tokens=LONG) == 4
        patched.setattr(torch, "get_num_threads", lambda: 1)
        assert sampling_workers(config, model, tokens=LONG) == 1
    fixed, model = model_of(tiny_folder, engine={"workers": 1})
    assert sampling_workers(fixed, model, tokens=LONG) == 1
    forks = {"roots": 1, "continuations": [7], "rule": {"kind": "random"}, "deterministic": True}
    tree, model = model_of(tiny_folder, rollout={"samples_per_prompt": 8, "branching": forks})
    assert sampling_workers(tree, model, tokens=LONG) == 1


@pytest.mark.usefixtures("threads")
def test_more_workers_than_threads_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"engine.workers = 3, and torch has 2 threads here"):
        model_of(tiny_folder, engine={"workers": 3})


def test_several_workers_have_no_fixed_order_of_answers() -> None:
    forks = {"roots": 1, "continuations": [7], "rule": {"kind": "random"}, "deterministic": True}
    tree = {
        "tasks": {"kind": "reasoning_gym", "name": "chain_sum"},
        "rollout": {"samples_per_prompt": 8, "branching": forks},
        "engine": {"workers": 2},
    }
    with pytest.raises(RecipeError, match=r"deterministic = true with engine.workers = 2: .*workers=1"):
        parse_recipe(tree)
