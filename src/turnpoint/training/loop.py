"""The method on one page: sample groups, decide what their tokens deserve, pack, learn, publish.

    tasks -> Rollouter -> Group -> Advantage -> PackedStep -> Trainer -> new weights -> engine

Everything algorithmic happens before packing, on typed objects; everything after it is arithmetic. The
engine samples with the weights that the step before published: the first update of a batch is on-policy.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnpoint.branching.gate import Gate
from turnpoint.drafting.online import OnlineHeads
from turnpoint.engine.stats import EngineStats
from turnpoint.engine.weights import weights_checksum
from turnpoint.errors import TrainingError, WeightSyncError
from turnpoint.metrics import Mean, Metrics, merge_metrics
from turnpoint.protocols import Advantage, WeightReceiver
from turnpoint.reports.branching_metrics import agreement
from turnpoint.reports.draft_metrics import draft_metrics
from turnpoint.reports.findings import MISMATCH, FindingLimits
from turnpoint.reports.phase import Phase
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.step import StepReport, make_step_report
from turnpoint.reports.teacher_words import Said
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.trackers import Trackers
from turnpoint.rollout.recorder import RolloutWriter
from turnpoint.rollout.refill import Collected, Refill, collect_step
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.tasks.order import TaskStream
from turnpoint.teachers.detail import detail_metrics
from turnpoint.teachers.metrics import teacher_metrics
from turnpoint.teachers.teaching import Teaching
from turnpoint.training.packing import PackedStep
from turnpoint.training.step import Trainer
from turnpoint.types import Group, SegmentCredit

Credited = tuple[Group, Sequence[SegmentCredit]]
Pack = Callable[[Sequence[Credited]], PackedStep]
Prepare = Callable[[PackedStep], tuple[PackedStep, Metrics]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The parts of one training run, each behind its seam."""

    stream: TaskStream
    rollouter: Rollouter
    refill: Refill | None
    gate: Gate | None  # of reflections
    advantage: Advantage
    teaching: Teaching | None
    calibrated: Metrics  # what was found before the first step, reported with it
    pack: Pack
    prepare: Prepare
    epochs: int
    mini_batches: int
    trainer: Trainer
    receiver: WeightReceiver
    drafted: Callable[[], EngineStats] | None  # counters of an engine that drafts
    heads: OnlineHeads | None  # that learn on
    recorder: RolloutWriter
    folder: RunFolder
    trackers: Trackers
    terminal: Terminal
    limits: FindingLimits
    learned: Callable[[int], None]  # told how many batches were learned from, before anything can fail

    async def step(self, index: int) -> StepReport:
        """Samples, learns from and reports batch `index`, counted from 0.

        Cancelled while it samples, it leaves weights and optimiser as they were. Raises TrainingError when
        engine and trainer disagree, and when a refill that must not fall short does.
        """
        clock = _Clock(self.terminal)
        before = self.drafted() if self.drafted else None
        with clock.phase("rollouts") as phase:
            collected = await collect_step(
                self.rollouter,
                self.stream,
                step=index + 1,
                refill=self.refill,
                progress=phase.advance,
                expect=phase.expect,
                finished=self.recorder.write,
            )
        agreed = agreement(collected.sampled)
        if self.gate is not None and agreed is not None:
            self.gate.observe([agreed])
        metrics = {**self._refilled(collected), **({} if index else self.calibrated)}
        if self.drafted and before is not None:
            metrics |= draft_metrics(self.drafted() - before)
        credited = [(group, self.advantage.credit(group)) for group in collected.kept]
        if self.teaching is not None:
            with clock.phase("teachers", self.teaching.asked(collected.kept)) as phase:
                words = await self.teaching.words(collected.kept, progress=phase.advance)
            metrics |= teacher_metrics(collected.kept, words, self.teaching.routing, clip=self.teaching.clip)
            metrics |= detail_metrics(collected.kept, words, self.teaching)
            for group, word in zip(collected.kept, words, strict=True):
                said = Said.of(self.teaching.routing.of(group.task), word)
                self.folder.append_said(index + 1, group.id, said)
            credited, found = self.teaching.teach(credited, words)
            metrics |= found
        with clock.phase("training") as phase:
            metrics |= self._learn(credited, phase)
        if self.heads is not None and self.heads.due(index + 1):
            with clock.phase("drafts") as phase:
                metrics |= self.heads.learn(index + 1, collected.sampled, progress=phase.advance)
        self.learned(index + 1)
        with clock.phase("weights"):
            publish(self.trainer, self.receiver, version=index + 1)
        report = make_step_report(
            step=index + 1,
            groups=collected.sampled,
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

    def _refilled(self, collected: Collected) -> Metrics:
        if self.refill is None:
            return {}
        if collected.missing and self.refill.stop_when_short:
            raise TrainingError(
                f"only {len(collected.kept)} of {self.stream.batch_size} groups have rewards that differ, "
                f"after {collected.rounds} rounds of refilling; raise rollout.refill.rounds, or let smaller "
                f"steps pass by rollout.refill.when_short=train"
            )
        return collected.metrics()

    def _learn(self, credited: Sequence[Credited], phase: Phase) -> Metrics:
        """Goes `epochs` times through the batch, one update per mini-batch."""
        packs = [self.pack(part) for part in _parts(credited, self.mini_batches)]
        phase.expect(self.epochs * sum(len(packed.trees) for packed in packs))
        prepared = [self.prepare(packed) for packed in packs]
        metrics = [found for _, found in prepared]
        moved = False
        for packed, _ in prepared * self.epochs:
            learned = self.trainer.forward_backward(packed, progress=phase.advance)
            if moved:  # that is no longer what engine and trainer disagree on
                learned = {name: metric for name, metric in learned.items() if name != MISMATCH}
            else:
                check_mismatch(learned, tolerance=self.limits.mismatch_tolerance)
            moved = moved or bool(packed.trees)  # an update that nothing trains moves no weight
            loss = Mean(learned["loss"].value or 0.0, 1)  # a mean over updates, each of them a whole loss
            metrics += [{**learned, "loss": loss}, self.trainer.optim_step()]
        return merge_metrics(metrics)


def _parts(groups: Sequence[Credited], count: int) -> list[Sequence[Credited]]:
    """Cuts `groups` into `count` runs whose lengths differ by one at most."""
    bounds = [len(groups) * part // count for part in range(count + 1)]
    return [groups[start:stop] for start, stop in itertools.pairwise(bounds)]


def check_mismatch(metrics: Metrics, *, tolerance: float) -> None:
    """Raises TrainingError when engine and trainer do not agree on the law; before the weights move."""
    mismatch = metrics.get(MISMATCH)
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
