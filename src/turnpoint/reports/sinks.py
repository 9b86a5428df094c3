"""Where figures can go beside the run folder: TensorBoard, trackio, Weights & Biases, one class each.

A sink is used from one thread, in the order `start`, `write`..., `finish`, and raises what its package
raises: `Trackers` keeps that away from the run. A package is imported when its sink starts, not before.
"""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from huggingface_hub import constants

from turnpoint.config import TrackersConfig

Package: TypeAlias = Callable[[], Any]  # returns the module that a sink writes with


@runtime_checkable
class Sink(Protocol):
    """One place that takes figures."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def about(self) -> str:
        """Where it writes and how that is looked at; one line."""
        ...

    @property
    def place(self) -> Path:
        """The folder it writes to; made by whoever starts it."""
        ...

    @property
    def pattern(self) -> str:
        """Glob in `place` of the files that must have grown once something was written."""
        ...

    def start(self) -> None:
        """Imports the package and opens the place."""
        ...

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Adds figures at `step`; steps may repeat, since a resumed run goes over some of them again."""
        ...

    def finish(self) -> None:
        """Writes out what is pending and closes."""
        ...


def make_sinks(config: TrackersConfig, *, folder: Path) -> list[Sink]:
    """Returns the sinks that `config` asks for, for the run in `folder`; imports nothing of theirs."""
    sinks: list[Sink] = []
    if config.tensorboard is not None:
        sinks.append(TensorBoardSink(folder))
    if config.trackio is not None:
        sinks.append(TrackioSink(folder, project=config.trackio.project))
    if config.wandb is not None:
        sinks.append(WandbSink(folder, project=config.wandb.project, mode=config.wandb.mode))
    return sinks


class TensorBoardSink:
    """Event files in the run folder, written by the package tensorboard alone: no torch, no TensorFlow."""

    name = "tensorboard"
    pattern = "events.out.tfevents.*"

    def __init__(self, folder: Path, *, package: Package | None = None) -> None:
        self.place = folder / "tensorboard"
        self._package = package or _imported("tensorboard.summary")
        self._writer: Any = None

    @property
    def about(self) -> str:
        """Where the event files are."""
        return f"event files in {self.place}; tensorboard --logdir {self.place}"

    def start(self) -> None:
        """Opens an event file of its own; those of earlier parts of the run stay."""
        self._writer = self._package().Writer(str(self.place))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Adds one scalar per figure and hands them to the operating system."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step=step)
        self._writer.flush()

    def finish(self) -> None:
        """Closes the event file."""
        self._writer.close()


class TrackioSink:
    """A local trackio database, at the place that TRACKIO_DIR names or in the cache of Hugging Face."""

    name = "trackio"
    pattern = "*.db*"

    def __init__(self, folder: Path, *, project: str, package: Package | None = None) -> None:
        self.place = Path(os.environ.get("TRACKIO_DIR") or Path(constants.HF_HOME) / "trackio")
        self._folder = folder
        self._project = project
        self._package = package or _imported("trackio")
        self._run: Any = None

    @property
    def about(self) -> str:
        """Where the database is."""
        return f"project {self._project} in {self.place}; trackio show --project {self._project!r}"

    def start(self) -> None:
        """Opens the run, or the one that this folder's run began before."""
        name = f"{self._folder.name}-{_run_id(self._folder / 'trackio-id')}"
        self._run = self._package().init(
            project=self._project, name=name, resume="allow", auto_log_gpu=False, auto_log_cpu=False
        )

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Queues the figures; trackio itself writes them within a second."""
        self._run.log(dict(figures), step=step)

    def finish(self) -> None:
        """Waits until trackio has written them."""
        self._run.finish()


class WandbSink:
    """Weights & Biases, online or as files to be sent later with `wandb sync`."""

    name = "wandb"
    pattern = "**/*.wandb"

    def __init__(self, folder: Path, *, project: str, mode: str, package: Package | None = None) -> None:
        self.place = folder / "wandb"
        self._folder = folder
        self._project = project
        self._offline = "offline" in (mode, os.environ.get("WANDB_MODE"))
        self._package = package or _imported("wandb")
        self._run: Any = None

    @property
    def about(self) -> str:
        """Where the files are, and what sends them."""
        later = f"; send them with: wandb sync {self.place}/offline-run-*" if self._offline else ", online"
        return f"project {self._project}, files in {self.place}{later}"

    def start(self) -> None:
        """Opens the run, or the one that this folder's run began before; never asks for a key.

        Raises RuntimeError when it should go online and nobody is logged in.
        """
        wandb = self._package()
        if not self._offline and not wandb.login(prompt=False):
            raise RuntimeError("nobody is logged in; run `wandb login`, or set trackers.wandb.mode=offline")
        self._run = wandb.init(
            project=self._project,
            name=self._folder.name,
            id=_run_id(self.place / "run-id"),
            resume="allow",
            dir=str(self._folder),
            mode="offline" if self._offline else None,
            settings=wandb.Settings(console="off", silent=True),  # standard output is not its business
        )
        # wandb's own step may only rise; a resumed run goes over the steps since its checkpoint again
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Queues the figures; wandb itself writes and sends them."""
        self._run.log({**figures, "step": step})

    def finish(self) -> None:
        """Waits until wandb has written and sent them."""
        self._run.finish()


def _imported(name: str) -> Package:
    return lambda: importlib.import_module(name)


def _run_id(path: Path) -> str:
    """Returns the name under which a tracker knows this run, the same after a resume."""
    if not path.exists():
        path.write_text(uuid.uuid4().hex[:8], encoding="ascii")
    return path.read_text(encoding="ascii")
