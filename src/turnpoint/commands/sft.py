"""`turnpoint sft`: supervised fine-tuning on solutions, the cold start of a policy."""

from __future__ import annotations

import asyncio
import json
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
from turnpoint.commands.origin import begun_with, changed_keys
from turnpoint.commands.past import Start, find_start, take_up
from turnpoint.commands.saving import Position, Saving
from turnpoint.config import SftConfig, load_sft_recipe, parse_sft_recipe
from turnpoint.errors import DataError, RecipeError
from turnpoint.losses import cross_entropy_loss
from turnpoint.metrics import metric_values
from turnpoint.models.loading import LoadedModel
from turnpoint.objective import build_trainer
from turnpoint.reports.phase import Phase
from turnpoint.reports.run_lock import locked
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_held_out
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
from turnpoint.tasks import BatchOrder, Fingerprint
from turnpoint.tasks.solutions import count_problems
from turnpoint.training.packing import PackedStep
from turnpoint.training.sft import Example, Schedule, learn, measure, pack_examples
from turnpoint.training.step import Trainer
from turnpoint.types import TokenIds

# What decides nothing about the steps that were taken.
_FREE = ("tasks.path", "model.path", "model.adapter.path", "training.save_every", "training.keep", "trackers")
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
    raised after a checkpoint of the last completed step has been saved; `resume_sft` goes on from there.
    """
    terminal = Terminal()
    with terminal.phase("reading examples"):
        solved = read_solved(config)
    folder = RunFolder.create(config.output_dir, config.name)
    with locked(folder.path):
        try:
            return _run(config, solved, folder, Start(), terminal)
        finally:
            folder.discard_if_unused()


def resume_sft(folder: str | Path, overrides: Sequence[str] = ()) -> SftResult:
    """Continues the run in `folder` as `resume` does one of `train`.

    `overrides` can change training.save_every and trackers, and say where the same problems and weights lie
    now. Raises UserError as `resume` does.
    """
    terminal, run_folder = Terminal(), RunFolder.open(Path(folder))
    with locked(run_folder.path):
        config = load_sft_recipe(run_folder.recipe, overrides)
        changed_keys(begun_with(run_folder, parse_sft_recipe), config, free=_FREE)
        start = find_start(run_folder, terminal)
        terminal.line(
            f"{run_folder.path} goes on after step {start.position.step}, from {start.source}", "bold"
        )
        with terminal.phase("reading examples"):
            solved = read_solved(config)
        return _run(config, solved, run_folder, start, terminal)


def _run(config: SftConfig, solved: Solved, folder: RunFolder, start: Start, terminal: Terminal) -> SftResult:
    """Trains from `start` to the last step; `folder` is locked."""
    with terminal.phase("loading the model"):
        model = open_model(config.model, seed=config.seed)
    renderer = make_renderer(config.prompt, model, solved.shots)
    count = len(solved.train) + len(solved.held_out)
    with terminal.phase("encoding examples", count) as phase:
        examples = encode_examples(solved, renderer, context=model.context_length, phase=phase)
    schedule = _schedule(config, examples)
    with Trackers.of(config.trackers, folder=folder.path, say=terminal.line) as trackers:
        run = _Sft(
            config=config,
            model=model,
            trainer=_trainer(config, model, steps=schedule.steps),
            folder=folder,
            trackers=trackers,
            terminal=terminal,
        )
        return run.train(solved, examples, schedule, start)


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

    def train(self, solved: Solved, examples: Examples, schedule: Schedule, start: Start) -> SftResult:
        """Plans, trains and measures; saves what was learnt whatever ends it."""
        folder = self.folder
        history = take_up(
            folder, start, self.config, self.model, _fingerprints(solved, examples), self.terminal
        )
        self.terminal.plan(self._plan(solved, examples, schedule))
        self.trackers.start()
        if start.state is not None:
            self.trainer.load_state_dict(start.state)
        known = read_held_out(folder.held_out)
        if start.position.step == 0:
            self._measure(examples.held_out, known, step=0)
        losses = [figures["cross_entropy"] for figures in history if "cross_entropy" in figures]
        asyncio.run(self._steps(examples.train, schedule, start.position, losses))
        self._measure(examples.held_out, known, step=schedule.steps)
        before, after = known.get(0), known.get(schedule.steps)
        self.terminal.findings(sft_verdict(losses, before=before, after=after))
        self.terminal.line(
            f"files in {folder.path}; a Hugging Face folder: turnpoint export {folder.path} DIR"
        )
        return SftResult(folder=folder.path, before=before, after=after)

    async def _steps(
        self, train: Sequence[Example], schedule: Schedule, begun: Position, losses: list[float]
    ) -> None:
        """Takes all steps that are left, and adds their cross-entropies to `losses`."""
        every = self.config.training.save_every
        with (
            Saving(
                self.trainer,
                self.folder,
                self.terminal,
                drawn=lambda done: done * self.config.training.examples_per_step,
                begun=begun,
                keep=self.config.training.keep,
                way_on=f"; to go on: turnpoint sft {self.folder.path}",
            ) as saving,
            self.terminal.phase("training", max(0, schedule.examples - begun.tasks)) as phase,
        ):
            for step in range(begun.step, schedule.steps):
                await asyncio.sleep(0)  # Ctrl-C ends the run here, between two steps, and nowhere else
                report = self._step([train[index] for index in schedule.batch(step)], step, phase)
                saving.count(report.step)
                self.trackers.step(report)
                self._tell(report, schedule.steps)
                losses.append(metric_values(report.metrics)["cross_entropy"])
                if every is not None and saving.done % every == 0:
                    saving.save()

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

    def _measure(self, held_out: Sequence[Example], known: dict[int, HeldOut], *, step: int) -> None:
        """Adds what `held_out` says of the model after `step` steps to `known`, unless it is."""
        if not held_out or step in known:
            return
        packed = self._packed(held_out)
        with self.terminal.phase("held-out examples", len(packed.trees)) as phase:
            measured = measure(self.trainer, packed, progress=phase.advance)
        self.folder.append_held_out(step, measured)
        self.trackers.write(step, {"held_out/cross_entropy": measured.cross_entropy})
        known[step] = measured

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
                train_problems=count_problems(example.solved for example in examples.train),
                held_out_problems=count_problems(example.solved for example in examples.held_out),
                first_prompt=self._decoded(first.prompt_ids),
                first_prompt_tokens=len(first.prompt_ids),
                first_solution=self._decoded(first.token_ids),
            ),
            steps=schedule.steps,
            folder=self.folder.path,
        )

    def _decoded(self, ids: TokenIds) -> str:
        return self.model.tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def _fingerprints(solved: Solved, examples: Examples) -> dict[str, Fingerprint]:
    return {
        "few-shot examples": Fingerprint.of(json.dumps(pair).encode() for pair in solved.shots),
        "examples to train on": Fingerprint.of(_ids(example) for example in examples.train),
        "held-out examples": Fingerprint.of(_ids(example) for example in examples.held_out),
    }


def _ids(example: Example) -> bytes:
    shown = example.demonstration
    return json.dumps([shown.prompt_ids.tolist(), shown.token_ids.tolist()]).encode()


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
        recompute=config.training.recompute,
        total_steps=steps,
    )
