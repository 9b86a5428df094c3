"""Run folders compared bit for bit, and pictures of them as a crash would leave them."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from turnpoint.commands import saving
from turnpoint.reports.run_log import RunFolder
from turnpoint.rollout import RolloutWriter, read_groups
from turnpoint.training import latest_checkpoint


def rows(path: Path) -> list[Any]:
    """Lines of a file without seconds and without reasons, which hold the path of the reward function."""
    return [_decided(json.loads(line)) for line in path.read_text().splitlines()]


def _decided(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = ("seconds", "wall_seconds", "slowest_verify", "reason")
        items = cast(dict[str, Any], value).items()
        kept = {key: inner for key, inner in items if key not in left_out and not key.startswith("seconds/")}
        return {key: _decided(inner) for key, inner in kept.items()}
    return [_decided(inner) for inner in cast(list[Any], value)] if isinstance(value, list) else value


def rollouts(run: Path) -> dict[str, Any]:
    """Groups by id: tasks, tokens, log-probabilities bit for bit, versions, rewards, cost in tokens."""
    groups = list(read_groups(run / "rollouts.jsonl"))
    found = {
        group.id: (
            group.task,
            group.tree,
            [(it.segments, it.text, it.finish, it.verdict.reward, it.verdict.valid) for it in group.members],
            group.account.tokens,
        )
        for group in groups
    }
    assert len(found) == len(groups), "a group was recorded twice"
    return found


def state_bytes(run: Path) -> bytes:
    """Weights, moments and steps of the latest checkpoint."""
    path = latest_checkpoint(run / "checkpoints")
    assert path is not None
    return (path / "state.safetensors").read_bytes()


def assert_same_run(run: Path, other: Path) -> None:
    """All that two runs decided, drew and logged is the same, and in the same order of steps."""
    assert rows(run / "metrics.jsonl") == rows(other / "metrics.jsonl")
    assert rollouts(run) == rollouts(other)
    assert rows(run / "evaluations.jsonl") == rows(other / "evaluations.jsonl")
    position = [json.loads((it / "checkpoint.json").read_text()) for it in (_last(run), _last(other))]
    assert position[0]["metadata"] == position[1]["metadata"]
    assert state_bytes(run) == state_bytes(other)


def _last(run: Path) -> Path:
    path = latest_checkpoint(run / "checkpoints")
    assert path is not None
    return path


def picture_after_every_write(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> None:
    """From now on, copies a run folder to `pictures`/NUMBER-WHAT as soon as something came into it.

    What is written is handed to the operating system at once, so each copy is what kill -9 would leave.
    """
    count = itertools.count(1)

    def after(owner: Any, name: str, run_of: Callable[[Any], Path]) -> None:
        """`run_of` finds the run folder in the first argument."""
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            shutil.copytree(run_of(arguments[0]), pictures / f"{next(count):03d}-{name}")
            return result

        monkeypatch.setattr(owner, name, call)

    def folder(it: RunFolder) -> Path:
        return it.path

    def writer(it: Any) -> Path:
        return it._path.parent

    def checkpoints(it: Path) -> Path:
        return it.parent

    for name in ("write_recipe", "append_evaluation", "append_held_out", "append_step"):
        after(RunFolder, name, folder)
    after(RolloutWriter, "write", writer)
    after(saving, "save_checkpoint", checkpoints)
