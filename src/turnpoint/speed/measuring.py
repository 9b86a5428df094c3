"""All measurements of one model at given lengths, in rounds: each kind of work, then the ceilings beside it.

Rates and ceilings are medians over rounds of the same run, so that what else the machine does weighs on both.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from turnpoint.config import EngineConfig, TrainingConfig
from turnpoint.diagnosis.budget import sampling_bytes, slack_of
from turnpoint.diagnosis.draft_memory import draft_needs
from turnpoint.diagnosis.memory import NOTHING_SAVED, Needs, gigabytes
from turnpoint.diagnosis.room import Room
from turnpoint.diagnosis.rows import Shape
from turnpoint.engine.engine import TorchEngine
from turnpoint.engine.span import CacheShape
from turnpoint.models.loading import LoadedModel
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import plural
from turnpoint.speculation import open_speculation
from turnpoint.speed.ceilings import MeasuredProducts, measure_bandwidth
from turnpoint.speed.context import LayerContext, context_bytes, layers_of
from turnpoint.speed.figures import Figure, Measured, Phases, Report
from turnpoint.speed.learning import Learning, afforded, learning_of, row_cost
from turnpoint.speed.limits import check_context, check_rollouts, fitting_rows
from turnpoint.speed.machine import Machine
from turnpoint.speed.phases import events_of, is_whole, phases_of, profiled
from turnpoint.speed.products import (
    Pass,
    Products,
    arithmetic_seconds,
    passes_of,
    products_of,
    weight_bytes,
)
from turnpoint.speed.rollouts import Extent, Sampling, SamplingRound, Timed
from turnpoint.training.step import Trainer
from turnpoint.types import TokenIds

_PROFILED_TOKENS = 10  # of each sequence: a few steps from begin to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured, and with what."""

    model: LoadedModel
    shape: Shape
    engine: EngineConfig
    workers: int  # processes that sample
    training: TrainingConfig
    temperature: float
    rounds: int
    seconds: float  # about what each kind of work may take, all rounds together
    machine: Machine
    room: Room | None  # None: memory cannot be measured here
    profile: Path | None  # where the trace of a few steps goes
    terminal: Terminal

    @property
    def at_once(self) -> int:
        """Sequences that decode together."""
        return min(self.engine.max_running, self.shape.prompts * self.shape.samples)


def measure(subject: Subject) -> Report:
    """Returns what was measured; changes no weight.

    Raises UserError, before any time is spent, for lengths beyond the context and for batches beyond memory.
    """
    return asyncio.run(_Measuring(subject).run())


class _Measuring:
    def __init__(self, subject: Subject) -> None:
        check_context(subject.shape, subject.model.context_length)
        self._subject = subject
        self._decoder = subject.model.decoder
        self._needs = _needs(subject)
        if self._needs is not None and subject.room is not None:
            check_rollouts(self._needs, capacity=subject.room.capacity())
        self._products: Products = products_of(self._decoder)
        self._contexts: Sequence[LayerContext] = layers_of(self._decoder)
        self._notes: list[str] = []
        self._measured: dict[str, list[Measured]] = {}
        self._bandwidth: list[float] = []
        self._batch_products: list[float] = []  # seconds of one step's products
        self._processor: list[float] = []

    async def run(self) -> Report:
        subject = self._subject
        engine = self._engine(workers=subject.workers)
        sampling = self._sampling(engine)
        each = subject.seconds / subject.rounds
        with subject.terminal.phase("warming up"):
            await engine.ready()
            extent = await sampling.extent(at_once=subject.at_once, seconds=each)
            learning = self._learning(each)
        with subject.terminal.phase("measuring", subject.rounds) as phase:
            for _ in range(subject.rounds):
                self._note_round(extent, await sampling.round(extent), learning)
                phase.advance(1)
        await engine.close()
        with subject.terminal.phase("profiling a few steps"):
            phases = await self._phases(extent)
        return self._report(extent, learning, phases)

    def _engine(self, *, workers: int) -> TorchEngine:
        subject = self._subject
        return TorchEngine(
            self._decoder,
            decode=_unread,
            context_length=subject.model.context_length,
            max_running=subject.engine.max_running,
            max_step_tokens=subject.engine.max_step_tokens,
            cache_tokens=subject.engine.cache_tokens,
            workers=workers,
            speculation=open_speculation(subject.engine.draft, self._decoder),
        )

    def _sampling(self, engine: TorchEngine) -> Sampling:
        return Sampling(
            engine,
            self._subject.shape,
            vocab_size=self._decoder.vocab_size,
            temperature=self._subject.temperature,
        )

    # --- training ---------------------------------------------------------------------------------

    def _learning(self, seconds: float) -> Learning | None:
        """Returns what a round trains on; None, with a note, where that does not fit."""
        subject, decoder = self._subject, self._decoder
        trained = sum(it.numel() for it in decoder.model.parameters() if it.requires_grad)
        masters = 0 if subject.model.dtype == "float32" else 4 * trained
        needs, capacity = self._needs, None
        if needs is not None and subject.room is not None:
            capacity = subject.room.capacity()
            needs = replace(needs, resident=needs.resident + masters, trained=4 * trained)
            if needs.total > capacity:
                self._notes.append(
                    f"training was not measured: it takes at least {gigabytes(needs.total)} of "
                    f"{gigabytes(capacity)}"
                )
                return None
        trainer = Trainer(
            decoder,
            learning_rate=1e-6,
            temperature=subject.temperature,
            head_chunk_tokens=subject.training.head_chunk_tokens,
            recompute=subject.training.recompute,
        )
        cost = row_cost(trainer, decoder, subject.shape, context=subject.model.context_length)
        rows: int | None = subject.training.micro_batch_tokens
        if needs is not None and capacity is not None:
            rows = fitting_rows(replace(needs, saved=cost.saved_bytes), capacity=capacity)
            if rows is None:
                self._notes.append(
                    "training was not measured: not even a row of one rollout fits into memory"
                )
                return None
            if rows < subject.training.micro_batch_tokens:
                self._notes.append(f"training in rows of {rows} tokens: more do not fit into memory")
        measured = afforded(subject.shape, cost, row_tokens=rows, seconds=seconds)
        return learning_of(
            trainer, decoder, asked=subject.shape, measured=measured, row_tokens=rows, trained=trained
        )

    # --- a round ----------------------------------------------------------------------------------

    def _note_round(self, extent: Extent, round_: SamplingRound, learning: Learning | None) -> None:
        subject = self._subject
        trained = None if learning is None else learning.seconds()
        clock = MeasuredProducts()
        bandwidth = measure_bandwidth(self._decoder.device, subject.room)
        self._bandwidth.append(bandwidth)
        self._processor.append(round_.batch.processor / round_.batch.seconds / subject.machine.threads)

        def note(name: str, seconds: float, passes: Sequence[Pass], context: float = 0.0) -> None:
            found = Measured(
                seconds=seconds,
                arithmetic=arithmetic_seconds(passes, clock),
                memory=(weight_bytes(passes) + context) / bandwidth,
            )
            self._measured.setdefault(name, []).append(found)

        for name, timed, sequences, prompts, tokens in (
            ("sample_one", round_.one, 1, 1, extent.one_tokens),
            ("sample_batch", round_.batch, extent.at_once, extent.prompts, extent.batch_tokens),
        ):
            read = self._context(prompts, sequences, tokens / 2) * timed.stats.decoded / sequences
            note(name, timed.seconds, self._passes(timed, sequences, sequences), read)
        most = subject.engine.max_step_tokens
        note("prefill", round_.prefill.seconds, self._passes(round_.prefill, most, most))
        note("score", round_.score.seconds, self._passes(round_.score, most, most))
        if learning is not None and trained is not None:
            passes = learning.passes(self._products, subject.training.head_chunk_tokens)
            note("train", trained, passes)
        self._batch_products.append(arithmetic_seconds(self._step(extent.at_once), clock))

    def _passes(self, timed: Timed, at_once: int, head_at_once: int) -> list[Pass]:
        """What the counters of the engine say went through the network and the head."""
        stats = timed.stats
        return [
            *passes_of(self._products.layers, stats.decoded + stats.prefilled, at_once=at_once),
            *passes_of(self._products.head, stats.sampled + stats.scored, at_once=head_at_once),
        ]

    def _step(self, rows: int) -> list[Pass]:
        return [
            *passes_of(self._products.layers, rows, at_once=rows),
            *passes_of(self._products.head, rows, at_once=rows),
        ]

    def _context(self, prompts: int, sequences: int, suffix: float) -> float:
        return context_bytes(
            self._contexts,
            prompts=min(prompts, sequences),
            prompt_tokens=self._subject.shape.prompt_tokens,
            sequences=sequences,
            suffix=suffix,
        )

    # --- phases -----------------------------------------------------------------------------------

    async def _phases(self, extent: Extent) -> Phases | None:
        """Returns the phases of one worker's steps, taken in this process on as many threads."""
        subject, threads = self._subject, torch.get_num_threads()
        torch.set_num_threads(max(1, threads // subject.workers))
        engine = self._engine(workers=1)
        sampling = self._sampling(engine)
        prompts = await sampling.prefilled(-(-extent.prompts // subject.workers))
        tokens = min(_PROFILED_TOKENS, subject.shape.new_tokens)
        with profiled(self._decoder) as profiler:
            await sampling.batch(prompts, -(-extent.at_once // subject.workers), tokens)
        await engine.close()
        torch.set_num_threads(threads)
        if subject.profile is not None:
            profiler.export_chrome_trace(str(subject.profile))
            if not is_whole(subject.profile):  # of a full disk torch says nothing
                self._notes.append(f"the trace could not be written whole to {subject.profile}")
        return phases_of(events_of(profiler))

    # --- what is left behind ----------------------------------------------------------------------

    def _report(self, extent: Extent, learning: Learning | None, phases: Phases | None) -> Report:
        subject = self._subject
        step = self._step(extent.at_once)
        products, bandwidth = statistics.median(self._batch_products), statistics.median(self._bandwidth)
        flops = sum(it.times * matrices.flops(it.rows) for it in step for matrices in it.matrices)
        weights = weight_bytes(self._step(1))
        return Report(
            model=subject.model.source,
            parameters=subject.model.parameters,
            machine=subject.machine,
            workers=subject.workers,
            shape=subject.shape,
            rounds=subject.rounds,
            seconds=subject.seconds,
            bandwidth=bandwidth,
            flops=flops / products,
            step_bytes=weights + self._context(1, 1, extent.one_tokens / 2),
            crossing=extent.at_once * (weights / bandwidth) / products,
            processor_share=statistics.median(self._processor),
            figures=tuple(self._figures(extent, learning)),
            phases=phases,
            notes=tuple(self._notes),
        )

    def _figures(self, extent: Extent, learning: Learning | None) -> list[Figure]:
        shape = self._subject.shape
        done = [
            ("sample_one", extent.one_tokens, _of(extent.one_tokens, shape.new_tokens)),
            (
                "sample_batch",
                extent.at_once * extent.batch_tokens,
                f"{extent.at_once} x {_of(extent.batch_tokens, shape.new_tokens)}, "
                f"{plural(extent.prompts, 'prompt')}",
            ),
            (
                "prefill",
                extent.prompts * shape.prompt_tokens,
                f"{_of(extent.prompts, shape.prompts, 'prompt')} of {shape.prompt_tokens}",
            ),
            (
                "score",
                extent.scored * shape.new_tokens,
                f"{_of(extent.scored, shape.prompts * shape.samples, 'rollout')}, prompts cached",
            ),
        ]
        if learning is not None:
            done.append(
                ("train", learning.tokens, _of(learning.tokens, learning.whole_tokens, "packed token"))
            )
        return [
            Figure(name=name, tokens=tokens, rounds=tuple(self._measured[name]), detail=detail)
            for name, tokens, detail in done
        ]


def _of(done: int, asked: int, noun: str = "token") -> str:
    """Returns how much of what was asked for was measured."""
    return plural(asked, noun) if done >= asked else f"{done:,} of {plural(asked, noun)}"


def _unread(_: TokenIds) -> str:
    return ""


def _needs(subject: Subject) -> Needs | None:
    """Returns what sampling takes; None where memory cannot be measured."""
    if subject.room is None:
        return None
    decoder = subject.model.decoder
    drafts = draft_needs(open_speculation(subject.engine.draft, decoder), workers=subject.workers)
    return Needs(
        resident=subject.room.used() + sampling_bytes(subject.model.decoder, subject.workers),
        trained=0,
        references=0,
        shape=subject.shape,
        evaluation_tokens=0,
        evaluation_rollouts=0,
        cache_tokens=subject.engine.cache_tokens,
        max_running=subject.engine.max_running,
        micro_batch_tokens=subject.training.micro_batch_tokens,
        token_state=CacheShape.of(decoder).token_bytes,
        vocab_size=decoder.vocab_size,
        saved=NOTHING_SAVED,
        head_chunk_tokens=subject.training.head_chunk_tokens,
        head_gradient=0,
        slack=slack_of(decoder.device),
        drafts=drafts,
    )
