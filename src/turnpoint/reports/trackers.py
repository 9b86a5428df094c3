"""Trackers at arm's length: whatever one does, the run neither stops nor waits for it.

    step, evaluation -> bounded queue -> daemon thread of the tracker -> its package

A tracker whose package is missing, that raises, writes nothing or does not keep up is dropped, with one
line that says so; the run folder has every figure anyway. Only the end of a run waits, for a few seconds.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnpoint.config import TrackersConfig
from turnpoint.metrics import metric_values
from turnpoint.reports.sinks import Sink, make_sinks
from turnpoint.reports.step import StepReport
from turnpoint.reports.text import duration, visible
from turnpoint.rollout.evaluate import Evaluation, Score

_CLOCK_GRAIN = 2.0  # seconds: file systems may round the time of a change that much


class Trackers:
    """Hands figures to sinks that run on their own; a context manager, whose end writes out what is pending.

    `say` gets one line per sink at `start` (where it writes) and at most one more (that it was dropped, and
    why), possibly from another thread. `patience`: seconds that the end waits, and that a sink has
    until its first figures must be in a file. `backlog`: rows that may wait for one sink. Text, such as
    completions, is not tracked: it is in the run folder.
    """

    def __init__(
        self, sinks: Sequence[Sink], say: Callable[[str], None], *, patience: float = 5.0, backlog: int = 1000
    ) -> None:
        self._workers = [_Worker(sink, say, patience=patience, backlog=backlog) for sink in sinks]
        self._patience = patience

    @staticmethod
    def of(config: TrackersConfig, *, folder: Path, say: Callable[[str], None]) -> Trackers:
        """Returns the trackers that `config` asks for, for the run in `folder`."""
        return Trackers(make_sinks(config, folder=folder), say)

    def start(self) -> None:
        """Opens the sinks, each in its thread; what was handed over before is written then."""
        for worker in self._workers:
            worker.start()

    def step(self, report: StepReport) -> None:
        """Tracks every figure of a step, and its seconds by phase."""
        seconds = {f"seconds/{phase}": value for phase, value in report.phases().items()}
        self.write(report.step, {**metric_values(report.metrics), **seconds})

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Tracks what an evaluation after `step` steps found; 0 is before training."""
        figures = {
            "evaluation/majority": evaluation.majority_accuracy,
            **_figures("greedy", evaluation.greedy),
        }
        if (sampled := evaluation.sampled) is not None:
            figures |= _figures("sampled", sampled)
        self.write(step, figures)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Tracks `figures` at `step`; returns at once."""
        shown = {visible(name): float(value) for name, value in figures.items()}
        for worker in self._workers:
            worker.put(_Row(step=step, figures=shown))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + self._patience
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.join(deadline)


def _figures(how: str, score: Score) -> dict[str, float]:
    found = {
        "accuracy": score.accuracy,
        "reward": score.mean_reward,
        "invalid": score.num_invalid / score.attempts if score.attempts else None,
        "truncated": score.truncated,
        "length": score.mean_tokens,
    }
    return {f"evaluation/{how}/{name}": value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    step: int
    figures: Mapping[str, float]


class _Worker:
    """One sink, its queue and its thread."""

    def __init__(self, sink: Sink, say: Callable[[str], None], *, patience: float, backlog: int) -> None:
        self._sink = sink
        self._say = say
        self._patience = patience
        self._queue: queue.Queue[_Row | None] = queue.Queue(backlog)
        self._thread = threading.Thread(target=self._run, name=f"tracker-{sink.name}", daemon=True)
        self._dropping = threading.Lock()
        self._dropped = False

    def start(self) -> None:
        """Says where the sink writes and starts it, unless that place cannot be written."""
        place = self._sink.place
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._drop(f"{place}: {error.strerror or error}")
            return
        if not os.access(place, os.W_OK):
            self._drop(f"{place} cannot be written")
            return
        self._say(f"tracker {self._sink.name}: {self._sink.about}")
        self._thread.start()

    def put(self, row: _Row | None) -> None:
        """Queues a row; None ends the thread."""
        if self._dropped:
            return
        try:
            self._queue.put_nowait(row)
        except queue.Full:
            self._drop(f"it does not keep up: {self._queue.maxsize:,} rows wait for it")

    def end(self) -> None:
        """Asks for no more than what is queued."""
        self.put(None)

    def join(self, deadline: float) -> None:
        """Waits for the thread, if it was started, until `deadline` of the monotonic clock."""
        if self._dropped or self._thread.ident is None:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._drop(f"not done {duration(self._patience)} after the run; what it had not written is lost")

    def _run(self) -> None:
        opened = time.time()
        checked = False
        try:
            self._sink.start()
            while (row := self._queue.get()) is not None and not self._dropped:
                self._sink.write(row.step, row.figures)
                if not checked:
                    self._wait_for_file(opened)
                    checked = True
            self._sink.finish()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tracker may raise anything; it is said
            self._drop(_why(error))

    def _wait_for_file(self, since: float) -> None:
        """Raises OSError unless a file of the sink has content and has changed since it was opened."""
        deadline = time.monotonic() + self._patience
        while not self._has_written(since):
            if time.monotonic() > deadline:
                raise OSError(f"nothing appeared in {self._sink.place} after the first step")
            time.sleep(0.05)

    def _has_written(self, since: float) -> bool:
        for path in self._sink.place.glob(self._sink.pattern):
            with contextlib.suppress(FileNotFoundError):  # databases have files that come and go
                file = path.stat()
                if path.is_file() and file.st_size and file.st_mtime >= since - _CLOCK_GRAIN:
                    return True
        return False

    def _drop(self, why: str) -> None:
        with self._dropping:
            if self._dropped:
                return
            self._dropped = True
        with contextlib.suppress(
            OSError, ValueError
        ):  # a closed terminal: the next line of the run raises it
            self._say(
                f"tracker {self._sink.name} dropped: {why}; the run goes on, its folder has all figures"
            )


def _why(error: BaseException) -> str:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, ModuleNotFoundError):
        return f"{what}; pip install 'turnpoint[track]'"
    return what
