"""What the commands do: train, evaluate, export; also the Python face, `import turnpoint as tp`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnpoint.assemble import (
    Policy,
    Problems,
    check_gold,
    fit_context,
    load_policy,
    load_problems,
    make_trainer,
    open_verifier,
)
from turnpoint.config import EvaluationConfig, RunConfig, load_recipe
from turnpoint.credit import GroupAdvantage
from turnpoint.errors import RecipeError, RunFolderError
from turnpoint.metrics import metric_values
from turnpoint.models.export import export_model
from turnpoint.protocols import Verifier
from turnpoint.reports.comparison import compare, entropy_collapse, reward_trend
from turnpoint.reports.findings import Finding, FindingLimits
from turnpoint.reports.plan import ModelFacts, Plan, make_plan
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.evaluate import Evaluation
from turnpoint.rollout.evaluate import evaluate as evaluate_tasks
from turnpoint.rollout.recorder import RolloutWriter
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.tasks import BatchOrder, Dataset
from turnpoint.training.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from turnpoint.training.loop import Loop
from turnpoint.training.packing import pack_step
from turnpoint.training.step import Trainer
from turnpoint.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Where a run's files are and what its first and last evaluation found; None without `evaluation`."""

    folder: Path
    before: Evaluation | None
    after: Evaluation | None


def train(config: RunConfig) -> TrainResult:
    """Trains as `config` says and returns where the files are.

    Raises UserError before anything is spent when the recipe cannot work. Ctrl-C (KeyboardInterrupt) is
    raised after a checkpoint of the last completed step has been saved.
    """
    terminal = Terminal()
    problems = _problems(config, terminal)
    folder = RunFolder.create(config.output_dir, config.name)
    try:
        with open_verifier(config) as verifier:
            policy = _policy(config, problems, terminal)
            session = _Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
            return asyncio.run(session.train(problems, folder))
    finally:
        folder.discard_if_unused()


def evaluate(source: str | Path, overrides: Sequence[str] = ()) -> Evaluation:
    """Evaluates the model of a recipe, or the latest checkpoint of a run folder, on its held-out problems.

    Raises UserError when there is nothing to evaluate.
    """
    terminal = Terminal()
    config = load_recipe(_recipe_of(Path(source)), overrides)
    if config.evaluation is None:
        raise RecipeError(f"{source} holds nothing out: add for example evaluation.tasks=64")
    problems = _problems(config, terminal)
    with open_verifier(config) as verifier:
        policy = _policy(config, problems, terminal)
        title = config.model.path
        if Path(source).is_dir():
            title = str(_restore(config, policy, Path(source)))
        session = _Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
        return asyncio.run(session.evaluate_held_out(problems.evaluation, config.evaluation, title))


def export(run: str | Path, folder: str | Path) -> Path:
    """Writes the latest checkpoint of the run folder `run` as a Hugging Face folder and returns that.

    The weights are in the type they were sampled in. Raises RunFolderError when there is no checkpoint.
    """
    terminal = Terminal()
    config = load_recipe(_recipe_of(Path(run)))
    policy = _policy(config, _problems(config, terminal), terminal)
    _restore(config, policy, Path(run))
    written = export_model(policy.model.decoder, tokenizer=policy.model.folder, folder=folder)
    terminal.line(f"written: {written}, a Hugging Face folder of {policy.model.source} as trained")
    return written


def _problems(config: RunConfig, terminal: Terminal) -> Problems:
    with terminal.phase("reading problems"):
        return load_problems(config)


def _policy(config: RunConfig, problems: Problems, terminal: Terminal) -> Policy:
    with terminal.phase("loading the model"):
        return load_policy(config, problems.examples)


def _recipe_of(source: Path) -> Path:
    return source / "recipe.yaml" if source.is_dir() else source


def _restore(config: RunConfig, policy: Policy, run: Path) -> Path:
    """Loads the latest checkpoint of a run into the policy and returns the checkpoint's folder."""
    path = latest_checkpoint(run / "checkpoints")
    if path is None:
        raise RunFolderError(f"{run} has no complete checkpoint; train it first")
    make_trainer(config, policy).load_state_dict(load_checkpoint(path).state)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A policy and its judge at work."""

    config: RunConfig
    policy: Policy
    verifier: Verifier
    terminal: Terminal

    async def train(self, problems: Problems, folder: RunFolder) -> TrainResult:
        """Checks, plans, trains and evaluates; saves what was learnt whatever ends it."""
        config, how = self.config, self.config.evaluation
        tasks, lengths, notes = await self._usable(problems.train)
        order = BatchOrder(
            num_tasks=len(tasks.tasks), batch_size=config.rollout.prompts_per_step, seed=config.seed
        )
        held_out, _, _ = await self._usable(problems.evaluation) if how else (problems.evaluation, [], [])
        folder.write_recipe(config)
        folder.write_environment(device=str(self.policy.model.decoder.device))
        if folder.note:
            self.terminal.line(folder.note, "yellow")
        self.terminal.plan(self._plan(problems, tasks, lengths, notes, len(held_out.tasks), folder))
        evaluations: list[Evaluation] = []
        history: list[dict[str, float]] = []  # figures only: groups of a long run would not fit

        async def evaluate_at(step: int, title: str) -> None:
            if how is not None:
                evaluations.append(await self.evaluate(held_out.tasks, how, title))
                folder.append_evaluation(step, evaluations[-1])

        await evaluate_at(0, "before training")
        trainer = make_trainer(config, self.policy)
        with RolloutWriter(folder.rollouts) as recorder, _Saving(trainer, folder, self.terminal) as saving:
            loop = self._loop(tasks, order, trainer, recorder, folder, saving)
            for index in range(config.training.steps):
                history.append(metric_values((await loop.step(index)).metrics))
                if _due(config.training.save_every, saving.done):
                    saving.save()
                if how and _due(how.every, saving.done) and saving.done < config.training.steps:
                    await evaluate_at(saving.done, f"after step {saving.done}")
        await evaluate_at(config.training.steps, "after training")
        self.terminal.findings(_verdict(history, evaluations))
        self.terminal.line(
            f"files in {folder.path}; a Hugging Face folder: turnpoint export {folder.path} DIR"
        )
        before, after = (evaluations[0], evaluations[-1]) if evaluations else (None, None)
        return TrainResult(folder=folder.path, before=before, after=after)

    async def evaluate_held_out(self, dataset: Dataset, how: EvaluationConfig, title: str) -> Evaluation:
        """Evaluates the usable tasks of `dataset`."""
        usable, _, notes = await self._usable(dataset)
        for note in notes:
            self.terminal.line(note)
        return await self.evaluate(usable.tasks, how, title)

    async def evaluate(self, tasks: Sequence[Task], how: EvaluationConfig, title: str) -> Evaluation:
        """Returns and shows what the engine's present weights earn."""
        sampling = self.config.sampling
        with self.terminal.phase(f"evaluation {title}", len(tasks) * (1 + how.samples)) as phase:
            evaluation = await evaluate_tasks(
                tasks,
                engine=self.policy.engine,
                renderer=self.policy.renderer,
                verifier=self.verifier,
                samples=how.samples,
                temperature=sampling.temperature,
                max_new_tokens=sampling.max_new_tokens,
                seed=self.config.seed,
                progress=phase.advance,
            )
        self.terminal.evaluation(title, evaluation)
        return evaluation

    async def _usable(self, dataset: Dataset) -> tuple[Dataset, list[int], list[str]]:
        sound, refused = await check_gold(dataset, self.verifier, self.terminal)
        fitting, lengths, dropped = fit_context(sound, self.policy, self.config.sampling.max_new_tokens)
        return fitting, lengths, [*refused, *dropped]

    def _plan(
        self,
        problems: Problems,
        tasks: Dataset,
        lengths: Sequence[int],
        notes: Sequence[str],
        num_held_out: int,
        folder: RunFolder,
    ) -> Plan:
        model = self.policy.model
        first = self.policy.renderer.prompt(tasks.tasks[0].messages)
        return make_plan(
            self.config,
            model=ModelFacts(
                name=model.source,
                parameters=self.policy.parameters,
                dtype=model.dtype,
                device=str(model.decoder.device),
                context_length=model.context_length,
            ),
            data=[*problems.train.report.lines(), *notes],
            num_train=len(tasks.tasks),
            num_eval=num_held_out,
            prompt_lengths=lengths,
            first_prompt=model.tokenizer.decode(first.tolist(), skip_special_tokens=False),
            folder=folder.path,
        )

    def _loop(
        self,
        tasks: Dataset,
        order: BatchOrder,
        trainer: Trainer,
        recorder: RolloutWriter,
        folder: RunFolder,
        saving: _Saving,
    ) -> Loop:
        config = self.config
        rollout, sampling, training = config.rollout, config.sampling, config.training
        return Loop(
            tasks=tasks.tasks,
            order=order,
            rollouter=Rollouter(
                self.policy.engine,
                self.policy.renderer,
                self.verifier,
                samples_per_prompt=rollout.samples_per_prompt,
                temperature=sampling.temperature,
                max_new_tokens=sampling.max_new_tokens,
                seed=config.seed,
            ),
            advantage=GroupAdvantage(baseline=config.advantage.baseline, scale=config.advantage.scale),
            pack=partial(
                pack_step,
                max_tokens=training.micro_batch_tokens,
                aggregation=config.loss.aggregation,
                max_new_tokens=sampling.max_new_tokens,
                device=self.policy.model.decoder.device,
            ),
            trainer=trainer,
            receiver=self.policy.engine,
            recorder=recorder,
            folder=folder,
            terminal=self.terminal,
            limits=FindingLimits(
                max_new_tokens=sampling.max_new_tokens,
                clip_low=config.loss.clip_low,
                clip_high=config.loss.clip_high,
                mismatch_tolerance=training.mismatch_tolerance,
            ),
            learned=saving.count,
        )


class _Saving:
    """Saves what was learnt when the block ends, however it ends; `done` counts completed steps."""

    def __init__(self, trainer: Trainer, folder: RunFolder, terminal: Terminal) -> None:
        self._trainer = trainer
        self._folder = folder
        self._terminal = terminal
        self._saved = 0
        self.done = 0

    def count(self, done: int) -> None:
        """Takes note that the trainer has taken `done` steps."""
        self.done = done

    def save(self) -> None:
        """Writes a checkpoint of the completed steps, once."""
        if self.done > self._saved:
            state = self._trainer.state_dict()
            path = save_checkpoint(
                self._folder.checkpoints, Checkpoint(step=self.done, state=state, metadata={})
            )
            self._terminal.line(f"checkpoint of step {self.done} saved: {path}")
            self._saved = self.done

    def __enter__(self) -> _Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.save()  # before anything is written to a terminal that may be gone
        if kind is not None:
            self._terminal.line(f"stopped after {self.done} completed steps")


def _verdict(history: Sequence[Mapping[str, float]], evaluations: Sequence[Evaluation]) -> list[Finding]:
    """Returns what the whole run can be said to have done; `history` holds the figures of each step."""
    trends = [
        reward_trend([figures["reward"] for figures in history if "reward" in figures]),
        entropy_collapse([figures["entropy"] for figures in history if "entropy" in figures]),
    ]
    changes = compare(evaluations[0], evaluations[-1]) if evaluations else ()
    return [*(finding for finding in trends if finding is not None), *changes]


def _due(every: int | None, done: int) -> bool:
    return every is not None and done % every == 0
