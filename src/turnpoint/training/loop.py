"""The method on one page: sample groups, decide what their tokens deserve, pack, learn, publish.

    tasks -> Rollouter -> Group -> Advantage -> PackedStep -> Trainer -> new weights -> engine

Everything algorithmic happens before packing, on typed objects; everything after it is arithmetic. The
engine samples with the weights that the step before published: on-policy, one update per batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnpoint.engine.weights import weights_checksum
from turnpoint.errors import TrainingError, WeightSyncError
from turnpoint.metrics import Mean, Metrics, merge_metrics
from turnpoint.protocols import Advantage, WeightReceiver
from turnpoint.reports.findings import FindingLimits
from turnpoint.reports.phase import Phase
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.step import StepReport, make_step_report
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.trackers import Trackers
from turnpoint.rollout.recorder import RolloutWriter
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.tasks.order import TaskStream
from turnpoint.training.packing import PackedStep
from turnpoint.training.step import Trainer
from turnpoint.types import Group, SegmentCredit

Pack = Callable[[Sequence[tuple[Group, Sequence[SegmentCredit]]]], PackedStep]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The parts of one training run, each behind its seam."""

    stream: TaskStream
    rollouter: Rollouter
    advantage: Advantage
    pack: Pack
    trainer: Trainer
    receiver: WeightReceiver
    recorder: RolloutWriter
    folder: RunFolder
    trackers: Trackers
    terminal: Terminal
    limits: FindingLimits
    learned: Callable[[int], None]  # told how many steps the trainer has taken, before anything can fail

    async def step(self, index: int) -> StepReport:
        """Takes optimiser step `index`, counted from 0, and reports it.

        Cancelled while it samples, it leaves weights and optimiser as they were.
        """
        batch = self.stream.take(self.stream.batch_size)
        clock = _Clock(self.terminal)
        with clock.phase("rollouts", len(batch) * self.rollouter.samples_per_prompt) as phase:
            groups = await self.rollouter.collect(
                batch, step=index + 1, progress=phase.advance, finished=self.recorder.write
            )
        with clock.phase("training") as phase:
            metrics = self._learn(groups, phase)
        self.learned(index + 1)
        with clock.phase("weights"):
            publish(self.trainer, self.receiver, version=index + 1)
        report = make_step_report(
            step=index + 1,
            groups=groups,
            trainer_metrics=metrics,
            seconds=clock.seconds,
            wall_seconds=clock.wall_seconds,
            limits=self.limits,
            first=index == 0,
        )
        self.folder.append_step(report)
        self.trackers.step(report)
        self.terminal.step(report)
        return report

    def _learn(self, groups: Sequence[Group], phase: Phase) -> Metrics:
        packed = self.pack([(group, self.advantage.credit(group)) for group in groups])
        learned = self.trainer.forward_backward(packed, progress=phase.advance)
        check_mismatch(learned, tolerance=self.limits.mismatch_tolerance)
        return merge_metrics([learned, self.trainer.optim_step()])


def check_mismatch(metrics: Metrics, *, tolerance: float) -> None:
    """Raises TrainingError when engine and trainer do not agree on the law; before the weights move."""
    mismatch = metrics.get("mismatch")
    if isinstance(mismatch, Mean) and mismatch.value is not None and mismatch.value > tolerance:
        raise TrainingError(
            f"engine and trainer disagree: mean |log-probability difference| {mismatch.value:.3g} nats is "
            f"above training.mismatch_tolerance = {tolerance:g}; try model.dtype=float32, or raise it"
        )


def publish(trainer: Trainer, receiver: WeightReceiver, *, version: int) -> None:
    """Hands the trainer's weights to the engine; raises WeightSyncError unless they arrived bit for bit."""
    state = trainer.publish()
    sent, held = weights_checksum(state), receiver.load_weights(state, version)
    if sent != held:
        raise WeightSyncError(
            f"weights of version {version} did not arrive: sent {sent}, engine holds {held}"
        )


class _Clock:
    """Seconds by phase, shown on the terminal while they pass."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @property
    def wall_seconds(self) -> float:
        return time.perf_counter() - self._started

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Generator[Phase]:
        started = time.perf_counter()
        with self._terminal.phase(name, total) as phase:
            yield phase
        self.seconds[name] = time.perf_counter() - started
