"""`turnpoint sft`: supervised fine-tuning on solutions, the cold start of a policy."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from turnpoint.assemble import make_renderer, open_model
from turnpoint.commands.saving import Saving
from turnpoint.config import FewShotPrompt, SftConfig
from turnpoint.errors import DataError, RecipeError, RunFolderError
from turnpoint.losses import cross_entropy_loss
from turnpoint.metrics import metric_values
from turnpoint.models.demonstration import UnusableSolution
from turnpoint.models.loading import LoadedModel
from turnpoint.models.renderer import ChatRenderer, FewShotRenderer
from turnpoint.reports.plan import ModelFacts
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.sft import ExampleFacts, HeldOut, make_sft_plan, sft_step_fields, sft_verdict
from turnpoint.reports.step import StepReport
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import number, plural
from turnpoint.tasks import BatchOrder, Dataset, load_tasks, split_examples
from turnpoint.tasks.solutions import SolvedTask, read_solutions
from turnpoint.training.checkpoint import latest_checkpoint, load_checkpoint
from turnpoint.training.packing import PackedStep
from turnpoint.training.sft import Example, Schedule, learn, measure, pack_examples
from turnpoint.training.step import Trainer
from turnpoint.types import TokenIds

_LINES = 50  # lines of steps that a run writes, about; metrics.jsonl has all steps

Renderer: TypeAlias = ChatRenderer | FewShotRenderer


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
        data = _read(config)
    folder = RunFolder.create(config.output_dir, config.name)
    try:
        with terminal.phase("loading the model"):
            model = open_model(config.model)
        renderer = make_renderer(config.prompt, model, data.shots)
        run = _Sft(config=config, model=model, folder=folder, terminal=terminal)
        return asyncio.run(run.train(data, renderer))
    finally:
        folder.discard_if_unused()


def restore_sft(config: SftConfig, model: LoadedModel, run: Path) -> Path:
    """Loads the latest checkpoint of a run into the model and returns the checkpoint's folder.

    Raises RunFolderError when there is none.
    """
    path = latest_checkpoint(run / "checkpoints")
    if path is None:
        raise RunFolderError(f"{run} has no complete checkpoint; train it first")
    trainer = _trainer(config, model, steps=config.optimizer.warmup_steps + 1)  # it takes no step
    trainer.load_state_dict(load_checkpoint(path).state)
    return path


# --- what is trained on -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """Solved tasks; no task is in two of the three."""

    dataset: Dataset
    shots: tuple[tuple[str, str], ...]  # question and answer, shown in few-shot prompts
    train: Sequence[SolvedTask]
    held_out: Sequence[SolvedTask]
    left_out: Counter[str]  # by reason


def _read(config: SftConfig) -> _Data:
    dataset = load_tasks(config.tasks)
    shots: tuple[tuple[str, str], ...] = ()
    if isinstance(config.prompt, FewShotPrompt):
        shots, dataset = split_examples(dataset, config.prompt.shots)
    solved, left_out = read_solutions(dataset, config.solution)
    border = len(solved) - config.held_out
    if border < 1:
        raise DataError(
            f"{dataset.name}: held_out = {config.held_out} leaves nothing to train on of "
            f"{plural(len(solved), 'example')}{_reasons(left_out)}; lower it or bring more examples"
        )
    return _Data(
        dataset=dataset, shots=shots, train=solved[:border], held_out=solved[border:], left_out=left_out
    )


def _notes(left_out: Counter[str]) -> list[str]:
    return [f"{plural(count, 'example')} left out: {reason}" for reason, count in left_out.items() if count]


def _reasons(left_out: Counter[str]) -> str:
    notes = "; ".join(_notes(left_out))
    return f" ({notes})" if notes else ""


def _encode(
    solved: Sequence[SolvedTask], renderer: Renderer, *, context: int, left_out: Counter[str]
) -> list[Example]:
    """Returns the examples that a policy could have sampled whole; counts the others in `left_out`."""
    examples: list[Example] = []
    for each in solved:
        try:
            demonstration = renderer.demonstrate(each.task.messages, each.text)
        except UnusableSolution as error:
            left_out[str(error)] += 1
            continue
        example = Example(solved=each, demonstration=demonstration)
        if example.length > context:
            left_out[f"prompt and solution are longer than the context of {number(context)} tokens"] += 1
        else:
            examples.append(example)
    return examples


# --- the run ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sft:
    """One run from its first check to its verdict."""

    config: SftConfig
    model: LoadedModel
    folder: RunFolder
    terminal: Terminal

    async def train(self, data: _Data, renderer: Renderer) -> SftResult:
        """Checks, plans, trains and measures; saves what was learnt whatever ends it."""
        config, folder, left_out = self.config, self.folder, data.left_out.copy()
        context = self.model.context_length
        with self.terminal.phase("encoding examples"):
            train = _encode(data.train, renderer, context=context, left_out=left_out)
            held_out = _encode(data.held_out, renderer, context=context, left_out=left_out)
        schedule = self._schedule(train, left_out)
        trainer = _trainer(config, self.model, steps=schedule.steps)
        folder.write_recipe(config)
        folder.write_environment(device=str(self.model.decoder.device))
        if folder.note:
            self.terminal.line(folder.note, "yellow")
        self.terminal.plan(
            make_sft_plan(
                config,
                model=self._model_facts(),
                examples=self._example_facts(data, train, held_out, left_out),
                steps=schedule.steps,
                folder=folder.path,
            )
        )
        before = self._measure(trainer, held_out, 0)
        losses: list[float] = []
        with Saving(trainer, folder, self.terminal) as saving:
            for step in range(schedule.steps):
                await asyncio.sleep(0)  # here, between two steps, and nowhere else Ctrl-C ends the run
                batch = [train[index] for index in schedule.batch(step)]
                losses.append(self._step(trainer, batch, saving, schedule.steps))
        after = self._measure(trainer, held_out, schedule.steps)
        self.terminal.findings(sft_verdict(losses, before=before, after=after))
        self.terminal.line(
            f"files in {folder.path}; a Hugging Face folder: turnpoint export {folder.path} DIR"
        )
        return SftResult(folder=folder.path, before=before, after=after)

    def _step(self, trainer: Trainer, batch: Sequence[Example], saving: Saving, steps: int) -> float:
        """Takes and reports one step; returns its cross-entropy."""
        started = time.perf_counter()
        packed = self._pack(batch)
        packing = time.perf_counter() - started
        with self.terminal.phase(f"step {saving.done + 1}", len(packed.trees)) as phase:
            metrics = learn(trainer, packed, progress=phase.advance)
        saving.done += 1
        seconds = time.perf_counter() - started
        report = StepReport(
            step=saving.done,
            groups=(),
            metrics=metrics,
            seconds={"packing": packing, "training": seconds - packing},
            wall_seconds=seconds,
        )
        self.folder.append_step(report)
        every = max(1, steps // _LINES)
        if saving.done % every == 0 or saving.done in (1, steps):
            self.terminal.fields(sft_step_fields(report, steps=steps))
        if self.config.training.save_every and saving.done % self.config.training.save_every == 0:
            saving.save()
        return metric_values(metrics)["cross_entropy"]

    def _measure(self, trainer: Trainer, held_out: Sequence[Example], step: int) -> HeldOut | None:
        if not held_out:
            return None
        packed = self._pack(held_out)
        with self.terminal.phase("held-out examples", len(packed.trees)) as phase:
            measured = measure(trainer, packed, progress=phase.advance)
        self.folder.append_held_out(step, measured)
        return measured

    def _pack(self, examples: Sequence[Example]) -> PackedStep:
        return pack_examples(
            examples,
            max_tokens=self.config.training.micro_batch_tokens,
            device=self.model.decoder.device,
        )

    def _schedule(self, train: Sequence[Example], left_out: Counter[str]) -> Schedule:
        size = self.config.training.examples_per_step
        if len(train) < size:
            raise DataError(
                f"training.examples_per_step = {size} but there are {plural(len(train), 'example')} to train "
                f"on{_reasons(left_out)}; lower it or bring more examples"
            )
        order = BatchOrder(num_tasks=len(train), batch_size=size, seed=self.config.seed)
        schedule = Schedule(order=order, epochs=self.config.training.epochs)
        warmup = self.config.optimizer.warmup_steps
        if warmup >= schedule.steps:
            raise RecipeError(
                f"optimizer.warmup_steps = {warmup} leaves nothing of the {plural(schedule.steps, 'step')} "
                f"that training.epochs = {self.config.training.epochs:g} gives"
            )
        return schedule

    def _model_facts(self) -> ModelFacts:
        decoder = self.model.decoder
        return ModelFacts(
            name=self.model.source,
            parameters=sum(weight.numel() for weight in decoder.model.parameters()),
            dtype=self.model.dtype,
            device=str(decoder.device),
            context_length=self.model.context_length,
        )

    def _example_facts(
        self, data: _Data, train: Sequence[Example], held_out: Sequence[Example], left_out: Counter[str]
    ) -> ExampleFacts:
        first = train[0].demonstration
        alone = sum(not example.demonstration.in_context for example in (*train, *held_out))
        notes = [*data.dataset.report.lines(), *_notes(left_out)]
        if alone:
            notes.append(
                f"{plural(alone, 'solution')} encoded without the prompt: rendered together, the ids do not "
                f"begin with those of the prompt, or hold more than the solution"
            )
        return ExampleFacts(
            notes=tuple(notes),
            lengths=tuple(example.length for example in train),
            solution_tokens=sum(len(example.demonstration.token_ids) for example in train),
            held_out=len(held_out),
            first_prompt=self._decoded(first.prompt_ids),
            first_prompt_tokens=len(first.prompt_ids),
            first_solution=self._decoded(first.token_ids),
        )

    def _decoded(self, ids: TokenIds) -> str:
        return self.model.tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def _trainer(config: SftConfig, model: LoadedModel, *, steps: int) -> Trainer:
    optimizer = config.optimizer
    return Trainer(
        model.decoder,
        loss=cross_entropy_loss,
        head_chunk_tokens=config.training.head_chunk_tokens,
        learning_rate=optimizer.learning_rate,
        betas=optimizer.betas,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        schedule=optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        total_steps=steps,
    )
