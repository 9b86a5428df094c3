"""Commands whose reader goes away, as `head` does: status 141, not a word, and what was learnt is saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import turnpoint as tp
from tests.typed import Command, start
from turnpoint.commands import saving
from turnpoint.reports.run_records import read_metrics
from turnpoint.reports.terminal import Terminal
from turnpoint.training import latest_checkpoint, load_checkpoint
from turnpoint.training.checkpoint import Checkpoint, save_checkpoint

UNREAD = 141


def unread(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Runs the command with a standard output that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "turnpoint", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)


def left_quietly(*arguments: str | Path) -> bool:
    answer = unread(*arguments)
    return (answer.returncode, answer.stderr) == (UNREAD, b"")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "--help"]])
def test_what_is_said_at_once(arguments: list[str]) -> None:
    """Python's own buffer, and two ways through rich, which would end with status 1."""
    assert left_quietly(*arguments)


@pytest.mark.slow
def test_every_command_that_prints(recipe: Path) -> None:
    """About half a minute: each is a process that loads what it needs."""
    run = tp.train(tp.load_recipe(recipe, ["training.steps=1"])).folder
    out = recipe.parent / "out"
    assert left_quietly("report", run)
    assert left_quietly("inspect", recipe)
    assert left_quietly("eval", run)
    assert left_quietly("export", run, out)
    assert left_quietly("filter", recipe, recipe.parent / "kept.jsonl", "--samples", "1")
    assert left_quietly("doctor", recipe, "--seconds", "0")


def test_a_mistake_is_still_told() -> None:
    answer = unread("train", "/no/such/recipe.yaml")
    assert answer.returncode == 2
    assert answer.stderr.startswith(b"turnpoint: /no/such/recipe.yaml")


def test_a_run_that_nobody_reads_saves_what_it_has_learnt(recipe: Path) -> None:
    process = start("train", recipe, "training.steps=5000", "evaluation=null")
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stdout:
        if line.startswith("step    3/"):
            break
    process.stdout.close()
    assert process.wait(timeout=120) == UNREAD
    assert process.stderr.read() == ""
    process.stderr.close()
    folder = recipe.parent / "runs" / "tiny"
    saved = latest_checkpoint(folder / "checkpoints")
    assert saved is not None
    loaded = load_checkpoint(saved)
    told = [step.step for step in read_metrics(folder / "metrics.jsonl")]
    assert loaded.step == int(loaded.state["steps"]) == len(told) >= 3
    tp.resume(folder, [f"training.steps={loaded.step + 1}"])
    assert [step.step for step in read_metrics(folder / "metrics.jsonl")] == [*told, loaded.step + 1]


def test_another_broken_pipe_is_an_error_like_others(
    turnpoint: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(Terminal, "plan", broken)
    answer = turnpoint("train", recipe)
    assert (answer.status, answer.err) == (1, "turnpoint: [Errno 32] Broken pipe\n")


def test_the_news_of_a_checkpoint_that_nobody_reads_does_not_save_it_twice(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Terminal.line

    def line(terminal: Terminal, text: str, style: str = "") -> None:
        if text.startswith("checkpoint of step"):
            raise BrokenPipeError(32, "Broken pipe")
        said(terminal, text, style)

    def save(folder: Path, checkpoint: Checkpoint) -> Path:
        times.append(checkpoint.step)
        return save_checkpoint(folder, checkpoint)

    times: list[int] = []
    monkeypatch.setattr(Terminal, "line", line)
    monkeypatch.setattr(saving, "save_checkpoint", save)
    settings = ["training.steps=4", "training.save_every=2", "evaluation=null"]
    with pytest.raises(BrokenPipeError):
        tp.train(tp.load_recipe(recipe, settings))
    assert times == [2]
