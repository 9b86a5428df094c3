"""`turnpoint sft`: supervised fine-tuning on solutions, the cold start of a policy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnpoint.assemble import make_renderer, open_model
from turnpoint.commands.common import check_base, latest_of, model_facts
from turnpoint.commands.examples import (
    Examples,
    Solved,
    encode_examples,
    in_brackets,
    left_out_lines,
    read_solved,
)
from turnpoint.commands.origin import Origin, model_checksum
from turnpoint.commands.saving import Position, Saving
from turnpoint.config import SftConfig
from turnpoint.errors import DataError, RecipeError
from turnpoint.losses import cross_entropy_loss
from turnpoint.metrics import metric_values
from turnpoint.models.loading import LoadedModel
from turnpoint.objective import build_trainer
from turnpoint.reports.phase import Phase
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.sft import (
    ExampleFacts,
    HeldOut,
    SftPlan,
    make_sft_plan,
    sft_step_fields,
    sft_verdict,
)
from turnpoint.reports.step import StepReport
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import plural
from turnpoint.reports.trackers import Trackers
from turnpoint.tasks import BatchOrder
from turnpoint.training.packing import PackedStep
from turnpoint.training.sft import Example, Schedule, learn, measure, pack_examples
from turnpoint.training.step import Trainer
from turnpoint.types import TokenIds

_LINES = 50  # lines of steps that a run writes, about; metrics.jsonl has all steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """Where a run's files are and what held-out examples say; None without `held_out`."""

    folder: Path
    before: HeldOut | None
    after: HeldOut | None


def sft(config: SftConfig) -> SftResult:
    """Trains on solutions as `config` says and returns where the files are.

    Raises UserError before anything is spent when the recipe cannot work. Ctrl-C (KeyboardInterrupt) is
    raised after a checkpoint of the last completed step has been saved.
    """
    terminal = Terminal()
    with terminal.phase("reading examples"):
        solved = read_solved(config)
    folder = RunFolder.create(config.output_dir, config.name)
    try:
        with terminal.phase("loading the model"):
            model = open_model(config.model, seed=config.seed)
        renderer = make_renderer(config.prompt, model, solved.shots)
        count = len(solved.train) + len(solved.held_out)
        with terminal.phase("encoding examples", count) as phase:
            examples = encode_examples(solved, renderer, context=model.context_length, phase=phase)
        schedule = _schedule(config, examples)
        trainer = _trainer(config, model, steps=schedule.steps)
        with Trackers.of(config.trackers, folder=folder.path, say=terminal.line) as trackers:
            run = _Sft(
                config=config,
                model=model,
                trainer=trainer,
                folder=folder,
                trackers=trackers,
                terminal=terminal,
            )
            return run.train(solved, examples, schedule)
    finally:
        folder.discard_if_unused()


def restore_sft(config: SftConfig, model: LoadedModel, run: Path, terminal: Terminal) -> Path:
    """Loads the latest checkpoint of a run into the model and returns the checkpoint's folder.

    Raises RunFolderError when there is none.
    """
    path, checkpoint = latest_of(run, terminal)
    check_base(config, model, run)
    trainer = _trainer(config, model, steps=config.optimizer.warmup_steps + 1)  # it takes no step
    trainer.load_state_dict(checkpoint.state)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sft:
    """One run from its plan to its verdict."""

    config: SftConfig
    model: LoadedModel
    trainer: Trainer
    folder: RunFolder
    trackers: Trackers
    terminal: Terminal

    def train(self, solved: Solved, examples: Examples, schedule: Schedule) -> SftResult:
        """Plans, trains and measures; saves what was learnt whatever ends it."""
        folder = self.folder
        Origin(
            model=model_checksum(self.config.model, self.model), recipe=self.config.model_dump(mode="json")
        ).write(folder)
        folder.write_recipe(self.config)
        folder.write_environment(device=str(self.model.decoder.device))
        if folder.note:
            self.terminal.line(folder.note, "yellow")
        self.terminal.plan(self._plan(solved, examples, schedule))
        self.trackers.start()
        before = self._measure(examples.held_out, step=0)
        losses = asyncio.run(self._steps(examples.train, schedule))
        after = self._measure(examples.held_out, step=schedule.steps)
        self.terminal.findings(sft_verdict(losses, before=before, after=after))
        self.terminal.line(
            f"files in {folder.path}; a Hugging Face folder: turnpoint export {folder.path} DIR"
        )
        return SftResult(folder=folder.path, before=before, after=after)

    async def _steps(self, train: Sequence[Example], schedule: Schedule) -> list[float]:
        """Takes all steps; returns their cross-entropies."""
        every, losses = self.config.training.save_every, list[float]()
        with (
            Saving(
                self.trainer,
                self.folder,
                self.terminal,
                drawn=lambda done: done * self.config.training.examples_per_step,
                begun=Position(),
            ) as saving,
            self.terminal.phase("training", schedule.examples) as phase,
        ):
            for step in range(schedule.steps):
                await asyncio.sleep(0)  # Ctrl-C ends the run here, between two steps, and nowhere else
                report = self._step([train[index] for index in schedule.batch(step)], step, phase)
                saving.count(report.step)
                self.trackers.step(report)
                self._tell(report, schedule.steps)
                losses.append(metric_values(report.metrics)["cross_entropy"])
                if every is not None and saving.done % every == 0:
                    saving.save()
        return losses

    def _step(self, batch: Sequence[Example], step: int, phase: Phase) -> StepReport:
        started = time.perf_counter()
        packed = self._packed(batch)
        packing = time.perf_counter() - started
        metrics = learn(self.trainer, packed, progress=lambda _, tokens: phase.advance(0, tokens))
        phase.advance(len(batch))
        seconds = time.perf_counter() - started
        return StepReport(
            step=step + 1,
            groups=(),  # nothing was sampled
            metrics=metrics,
            seconds={"packing": packing, "training": seconds - packing},
            wall_seconds=seconds,
        )

    def _tell(self, report: StepReport, steps: int) -> None:
        self.folder.append_step(report)
        if report.step % -(-steps // _LINES) == 0 or report.step in (1, steps):
            self.terminal.fields(sft_step_fields(report, steps=steps))

    def _measure(self, held_out: Sequence[Example], *, step: int) -> HeldOut | None:
        if not held_out:
            return None
        packed = self._packed(held_out)
        with self.terminal.phase("held-out examples", len(packed.trees)) as phase:
            measured = measure(self.trainer, packed, progress=phase.advance)
        self.folder.append_held_out(step, measured)
        self.trackers.write(step, {"held_out/cross_entropy": measured.cross_entropy})
        return measured

    def _packed(self, examples: Sequence[Example]) -> PackedStep:
        size = self.config.training.micro_batch_tokens
        return pack_examples(examples, max_tokens=size, device=self.model.decoder.device)

    def _plan(self, solved: Solved, examples: Examples, schedule: Schedule) -> SftPlan:
        first = examples.train[0].demonstration
        return make_sft_plan(
            self.config,
            model=model_facts(self.model),
            examples=ExampleFacts(
                notes=(*solved.report, *left_out_lines(examples.left_out)),
                alone=examples.alone,
                lengths=tuple(example.length for example in examples.train),
                solution_tokens=sum(len(example.demonstration.token_ids) for example in examples.train),
                held_out=len(examples.held_out),
                first_prompt=self._decoded(first.prompt_ids),
                first_prompt_tokens=len(first.prompt_ids),
                first_solution=self._decoded(first.token_ids),
            ),
            steps=schedule.steps,
            folder=self.folder.path,
        )

    def _decoded(self, ids: TokenIds) -> str:
        return self.model.tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def _schedule(config: SftConfig, examples: Examples) -> Schedule:
    size, count = config.training.examples_per_step, len(examples.train)
    if count < size:
        raise DataError(
            f"training.examples_per_step = {size} but there are {plural(count, 'example')} to train "
            f"on{in_brackets(examples.left_out)}; lower it or bring more examples"
        )
    order = BatchOrder(num_tasks=count, batch_size=size, seed=config.seed)
    schedule = Schedule(order=order, epochs=config.training.epochs)
    if config.optimizer.warmup_steps >= schedule.steps:
        raise RecipeError(
            f"optimizer.warmup_steps = {config.optimizer.warmup_steps} leaves nothing of the "
            f"{plural(schedule.steps, 'step')} that training.epochs = {config.training.epochs:g} gives"
        )
    return schedule


def _trainer(config: SftConfig, model: LoadedModel, *, steps: int) -> Trainer:
    return build_trainer(
        model.decoder,
        config.optimizer,
        loss=cross_entropy_loss,
        head_chunk_tokens=config.training.head_chunk_tokens,
        total_steps=steps,
    )
