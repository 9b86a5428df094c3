"""Trackers: every figure arrives, and nothing that one does stops or slows a run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.reports.samples import make_evaluation, make_group
from tests.reports.test_step import report_of
from turnpoint.config import TensorBoardConfig, TrackersConfig, TrackioConfig, WandbConfig
from turnpoint.metrics import Mean
from turnpoint.reports.sinks import TensorBoardSink, TrackioSink, WandbSink, make_sinks
from turnpoint.reports.trackers import Trackers


def _ignore(*_: object) -> None:
    """The place where a fault is put."""


@dataclass
class FileSink:
    """Keeps rows and writes a file, as a tracker does; each of its parts can be made to fail."""

    place: Path
    starting: Callable[[], object] = _ignore
    writing: Callable[[int], object] = _ignore
    writes: bool = True
    rows: list[tuple[int, Mapping[str, float]]] = field(default_factory=list[Any])
    finished: bool = False
    name: str = "file"
    about: str = "a file"
    pattern: str = "*.txt"

    def start(self) -> None:
        self.starting()

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.writing(step)
        self.rows.append((step, figures))
        if self.writes:
            (self.place / "rows.txt").write_text(str(self.rows))

    def finish(self) -> None:
        self.finished = True


def told(sink: FileSink, *rows: int, patience: float = 5.0, backlog: int = 100) -> list[str]:
    """What is said while `rows` are tracked."""
    said: list[str] = []
    with Trackers([sink], said.append, patience=patience, backlog=backlog) as trackers:
        trackers.start()
        for step in rows:
            trackers.write(step, {"reward": 0.5})
    return said


def raising(error: BaseException) -> Callable[..., object]:
    def fail(*_: object) -> None:
        raise error

    return fail


# --- what is tracked ----------------------------------------------------------------------------


def test_every_figure_of_a_step_is_tracked_under_its_number(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    report = report_of([make_group([1.0, 0.0])], {"grad_norm": Mean(3.0, 2)}, seconds={"rollouts": 9.9})
    with Trackers([sink], _ignore) as trackers:
        trackers.start()
        trackers.step(report)
    ((step, figures),) = sink.rows
    assert step == report.step == 3
    assert figures["grad_norm"] == 1.5
    assert figures["reward"] == 0.5
    assert figures["seconds/rollouts"] == 9.9
    values = {name for name, metric in report.metrics.items() if metric.value is not None}
    assert values <= figures.keys()
    assert all(type(value) is float for value in figures.values())


def test_figures_of_an_evaluation_and_not_those_it_does_not_have(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    with Trackers([sink], _ignore) as trackers:
        trackers.start()
        trackers.evaluation(0, make_evaluation([1.0, 0.0], [[1.0, 1.0], [0.0, 1.0]]))
        trackers.evaluation(8, make_evaluation(["broken", "broken"]))
    (first, before), (second, after) = sink.rows
    assert (first, second) == (0, 8)
    assert before["evaluation/greedy/accuracy"] == 0.5
    assert before["evaluation/sampled/accuracy"] == 0.75
    assert after["evaluation/greedy/invalid"] == 1.0
    assert "evaluation/greedy/accuracy" not in after
    assert not any(name.startswith("evaluation/sampled") for name in after)


def test_it_says_where_it_writes_before_anything_is_written(tmp_path: Path) -> None:
    assert told(FileSink(tmp_path)) == ["tracker file: a file"]


def test_without_trackers_nothing_happens() -> None:
    folder, said = Path("/no/such/folder"), list[str]()
    with Trackers.of(TrackersConfig(), folder=folder, say=said.append) as trackers:
        trackers.start()
        trackers.write(1, {"reward": 1.0})
    assert said == []
    assert not folder.exists()


def test_a_run_that_is_refused_opens_no_tracker(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "tracker", starting=raising(AssertionError("opened")))
    said: list[str] = []
    with Trackers([sink], said.append):
        pass
    assert said == []
    assert not sink.place.exists()


# --- what can go wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ValueError("odd\nvalue"), SystemExit(3)])
@pytest.mark.parametrize("where", ["starting", "writing"])
def test_what_a_tracker_raises_is_one_line(tmp_path: Path, error: BaseException, where: str) -> None:
    starting, writing = (raising(error) if where == part else _ignore for part in ("starting", "writing"))
    sink = FileSink(tmp_path, starting=starting, writing=writing)
    _, line = told(sink, 1, 2, 3)
    assert line.startswith(f"tracker file dropped: {type(error).__name__}")
    assert "\n" not in line
    assert sink.rows == []


def test_a_package_that_is_missing_names_the_extra(tmp_path: Path) -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'tensorboard'")

    said: list[str] = []
    with Trackers([TensorBoardSink(tmp_path, package=missing)], said.append) as trackers:
        trackers.start()
        trackers.write(1, {"reward": 1.0})
    assert len(said) == 2
    assert "No module named 'tensorboard'; pip install 'turnpoint[track]'" in said[1]


def test_a_tracker_that_hangs_costs_no_step_and_ends_within_its_patience(tmp_path: Path) -> None:
    release, entered = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        entered.set()
        release.wait(60)

    sink = FileSink(tmp_path, writing=hang)
    said: list[str] = []
    began = time.monotonic()
    with Trackers([sink], said.append, patience=0.2) as trackers:
        trackers.start()
        for step in range(50):
            trackers.write(step, {"reward": 0.5})
        assert entered.wait(30)
    assert time.monotonic() - began < 30  # not the minute that it hangs
    assert "not done" in said[1]
    release.set()


HANGING = """
import pathlib, sys, time
from turnpoint.reports.trackers import Trackers

class Hanging:
    name = about = pattern = "hanging"
    place = pathlib.Path(sys.argv[1])
    def start(self): time.sleep(1000)
    def write(self, step, figures): pass
    def finish(self): pass

with Trackers([Hanging()], print, patience=0.1) as trackers:
    trackers.start()
    trackers.write(1, {})
"""


def test_a_tracker_that_hangs_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "tracker hanging dropped: not done" in done.stdout


def test_a_tracker_that_does_not_keep_up_is_dropped_not_waited_for(tmp_path: Path) -> None:
    release = threading.Event()
    sink = FileSink(tmp_path, writing=lambda _: release.wait(60))
    said: list[str] = []
    with Trackers([sink], said.append, patience=5, backlog=10) as trackers:
        trackers.start()
        for step in range(50):
            trackers.write(step, {"reward": 0.5})
        assert said[1].startswith("tracker file dropped: it does not keep up: 10 rows wait for it")
        release.set()
    assert len(said) == 2  # once, however many rows come after


def test_one_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    good, bad = FileSink(tmp_path), FileSink(tmp_path, starting=raising(RuntimeError("no")), name="bad")
    said: list[str] = []
    with Trackers([bad, good], said.append) as trackers:
        trackers.start()
        trackers.write(1, {"reward": 1.0})
        trackers.write(2, {"reward": 1.0})
    assert [step for step, _ in good.rows] == [1, 2]
    assert good.finished
    assert [line for line in said if "dropped" in line] == [
        "tracker bad dropped: RuntimeError: no; the run goes on, its folder has all figures"
    ]


@pytest.mark.parametrize("old", [False, True])
def test_one_that_writes_nothing_is_found_after_the_first_step(tmp_path: Path, old: bool) -> None:
    if old:  # what an earlier run left does not count
        (tmp_path / "rows.txt").write_text("old")
        os.utime(tmp_path / "rows.txt", (1_000_000_000, 1_000_000_000))
    sink = FileSink(tmp_path, writes=False)
    said: list[str] = []
    with Trackers([sink], said.append, patience=0.2) as trackers:
        trackers.start()
        trackers.write(1, {"reward": 1.0})
        deadline = time.monotonic() + 30
        while len(said) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert f"nothing appeared in {tmp_path} after the first step" in said[1]


def test_a_place_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (line,) = told(FileSink(tmp_path / "file" / "tracker"), 1)
    assert line.startswith("tracker file dropped:")
    assert str(tmp_path / "file") in line


def test_a_terminal_that_is_closed_does_not_matter_to_a_tracker(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, writing=raising(RuntimeError("no")))
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if "dropped" in line:
            raise BrokenPipeError

    with Trackers([sink], say) as trackers:
        trackers.start()
        trackers.write(1, {"reward": 1.0})
    assert len(lines) == 2


# --- the packages -------------------------------------------------------------------------------


def test_a_recipe_names_the_sinks(tmp_path: Path) -> None:
    config = TrackersConfig(
        tensorboard=TensorBoardConfig(), trackio=TrackioConfig(project="p"), wandb=WandbConfig(mode="offline")
    )
    sinks = make_sinks(config, folder=tmp_path)
    assert [sink.name for sink in sinks] == ["tensorboard", "trackio", "wandb"]
    assert str(tmp_path / "tensorboard") in sinks[0].about
    assert "project p" in sinks[1].about
    assert f"wandb sync {tmp_path / 'wandb'}" in sinks[2].about


class Package:
    """Stands for trackio or wandb: remembers what it was asked."""

    def __init__(self, *, known: bool = True) -> None:
        self.opened: list[dict[str, Any]] = []
        self.logged: list[tuple[Mapping[str, float], dict[str, Any]]] = []
        self.axes: list[dict[str, Any]] = []
        self._known = known

    def login(self, *, prompt: bool) -> bool:
        assert not prompt  # a run must not wait for someone who types
        return self._known

    def init(self, **settings: Any) -> Any:
        self.opened.append(settings)
        return SimpleNamespace(log=self._log, finish=_ignore, define_metric=self._axis)

    def Settings(self, **settings: Any) -> Any:
        return settings

    def _log(self, figures: Mapping[str, float], **more: Any) -> None:
        self.logged.append((figures, more))

    def _axis(self, name: str, **more: Any) -> None:
        self.axes.append({"name": name, **more})


def test_trackio_goes_on_with_its_run_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "db"))
    package = Package()
    for step in (7, 8):
        sink = TrackioSink(tmp_path, project="p", package=lambda: package)
        assert sink.place == tmp_path / "db"
        sink.start()
        sink.write(step, {"reward": 1.0})
        sink.finish()
    assert [more for _, more in package.logged] == [{"step": 7}, {"step": 8}]
    first, second = package.opened
    assert first == second
    assert first["resume"] == "allow"
    other = Package()
    (tmp_path / "other").mkdir()
    TrackioSink(tmp_path / "other", project="p", package=lambda: other).start()
    assert other.opened[0]["name"] != first["name"]


def test_wandb_goes_on_with_its_run_on_the_same_axis(tmp_path: Path) -> None:
    package = Package(known=False)
    (tmp_path / "wandb").mkdir()
    for step in (7, 6):  # a resume goes back to its checkpoint
        sink = WandbSink(tmp_path, project="p", mode="offline", package=lambda: package)
        sink.start()
        sink.write(step, {"reward": 1.0})
    assert [figures for figures, _ in package.logged] == [
        {"reward": 1.0, "step": 7},
        {"reward": 1.0, "step": 6},
    ]
    assert package.axes[0] == {"name": "*", "step_metric": "step"}
    assert package.opened[0]["id"] == package.opened[1]["id"]
    assert package.opened[0]["mode"] == "offline"
    assert package.opened[0]["settings"]["console"] == "off"


def test_wandb_online_without_a_login_is_said_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    sink = WandbSink(tmp_path, project="p", mode="online", package=lambda: Package(known=False))
    with pytest.raises(RuntimeError, match=r"trackers\.wandb\.mode=offline"):
        sink.start()


def test_wandb_s_own_environment_variable_takes_it_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "wandb").mkdir()
    package = Package(known=False)
    WandbSink(tmp_path, project="p", mode="online", package=lambda: package).start()
    assert package.opened[0]["mode"] == "offline"


def test_tensorboard_itself_reads_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tensors = pytest.importorskip("tensorboard.util.tensor_util")
    said: list[str] = []
    for steps in ((1, 2), (3,)):  # a run and its resume
        with Trackers([TensorBoardSink(tmp_path)], said.append) as trackers:
            trackers.start()
            for step in steps:
                trackers.write(step, {"reward": step / 2, "odd/\ud800": float("nan")})
    assert not any("dropped" in line for line in said)
    points: dict[int, float] = {}
    for file in (tmp_path / "tensorboard").glob("events.*"):
        events: Any = accumulator.EventAccumulator(str(file))
        events.Reload()
        for event in events.Tensors("reward"):
            points[event.step] = float(tensors.make_ndarray(event.tensor_proto))
    assert points == {1: 0.5, 2: 1.0, 3: 1.5}
