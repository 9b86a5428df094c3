"""kill -9 at any moment: however often a run dies, it ends as the run that never did.

The killed processes are real ones, forked from a server that has imported everything, so that an attempt
takes a second instead of five. Each takes up the run where the one before left it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.recipe import write_tiny_recipe
from tests.runs import assert_same_run
from tests.tiny import save_tiny_model

FORKED = multiprocessing.get_context("forkserver")
RUN = "runs/tiny"
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # before 3.13 the server has no other way
    FORKED.set_forkserver_preload(["tests.faults.test_kill", "turnpoint.commands.resume"])


def attempt(folder: Path, overrides: list[str], die_before: int) -> None:
    """What a child does: begins a run, or goes on with the one of `folder`."""
    import turnpoint as tp

    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    if die_before:
        sys.addaudithook(death_before_change(die_before, within=str(folder / RUN)))
    if (folder / RUN / "recipe.yaml").exists():
        tp.resume(folder / RUN)
    else:
        tp.train(tp.load_recipe(folder / "recipe.yaml", overrides))


def death_before_change(number: int, *, within: str) -> Any:
    """Returns an audit hook that kills this process when it is about to change files for the n-th time."""
    left = number

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = event == "open" and str(arguments[1])[:1] in ("w", "a")
        if (writes or event in CHANGES) and str(arguments[0]).startswith(within):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return watch


def killed(folder: Path, overrides: list[str], *, after: float = 300.0, before_change: int = 0) -> bool:
    """Makes one attempt and returns whether it was killed, after some seconds or by itself."""
    if not (folder / RUN / "recipe.yaml").exists():
        shutil.rmtree(folder / RUN, ignore_errors=True)  # it died before it had begun
    child = FORKED.Process(target=attempt, args=(folder, overrides, before_change))
    child.start()
    child.join(after)
    child.kill()  # where it is dead already, nothing
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), (folder / "log").read_text()[-4000:]
    return child.exitcode != 0


def new_folder(path: Path, model: Path) -> Path:
    path.mkdir()
    write_tiny_recipe(path / "recipe.yaml", model=model)
    return path


def finished(folder: Path, overrides: list[str]) -> Path:
    """Makes one attempt that nothing interrupts and returns the run."""
    assert not killed(folder, overrides)
    return folder / RUN


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path, model: Path) -> None:
    """Twenty kills over as many runs as it takes."""
    overrides = ["training.steps=12", "training.save_every=1", "evaluation.every=5"]
    whole = finished(new_folder(tmp_path / "whole", model), overrides)
    moments, kills, runs = random.Random(0), 0, 0
    while kills < 20:
        folder, runs = new_folder(tmp_path / f"{runs}", model), runs + 1
        while kills < 20 and killed(folder, overrides, after=moments.uniform(0.2, 1.5)):
            kills += 1
        assert_same_run(finished(folder, overrides), whole)


@pytest.mark.slow
def test_killed_before_any_change_of_a_file(tmp_path: Path, model: Path) -> None:
    """Run n dies before its n-th change of a file, and once more before the n-th after it went on."""
    overrides = ["training.steps=2", "training.save_every=1"]
    whole = finished(new_folder(tmp_path / "whole", model), overrides)
    number, folder = 1, new_folder(tmp_path / "1", model)
    while killed(folder, overrides, before_change=number):
        killed(folder, overrides, before_change=number)
        assert_same_run(finished(folder, overrides), whole)
        number, folder = number + 1, new_folder(tmp_path / f"{number + 1}", model)
    assert number > 20
