"""`turnpoint train`: checks, plans, trains, evaluates, and saves what was learnt whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnpoint.assemble import Problems, open_verifier
from turnpoint.commands.common import read_policy, read_problems
from turnpoint.commands.session import Session
from turnpoint.config import RunConfig
from turnpoint.metrics import metric_values
from turnpoint.objective import (
    make_advantage,
    make_preparation,
    make_reference,
    make_refill,
    make_trainer,
)
from turnpoint.reports.comparison import compare, entropy_collapse, reward_trend
from turnpoint.reports.findings import Finding, FindingLimits
from turnpoint.reports.plan import ModelFacts, Plan, make_plan
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.evaluate import Evaluation
from turnpoint.rollout.recorder import RolloutWriter
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.tasks import BatchOrder, Dataset, TaskStream
from turnpoint.training.checkpoint import Checkpoint, save_checkpoint
from turnpoint.training.loop import Loop
from turnpoint.training.packing import pack_step
from turnpoint.training.reference import Reference
from turnpoint.training.step import Trainer


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
    problems = read_problems(config, terminal)
    folder = RunFolder.create(config.output_dir, config.name)
    try:
        with open_verifier(config) as verifier:
            policy = read_policy(config, problems, terminal)
            session = Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
            return asyncio.run(_Training(session=session).train(problems, folder))
    finally:
        folder.discard_if_unused()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """One run from its first check to its verdict."""

    session: Session

    async def train(self, problems: Problems, folder: RunFolder) -> TrainResult:
        """Checks, plans, trains and evaluates; saves what was learnt whatever ends it."""
        config, how = self.session.config, self.session.config.evaluation
        tasks, lengths, notes = await self.session.usable(problems.train)
        order = BatchOrder(
            num_tasks=len(tasks.tasks), batch_size=config.rollout.prompts_per_step, seed=config.seed
        )
        stream = TaskStream(tasks.tasks, order)
        held_out, _, _ = (
            await self.session.usable(problems.evaluation) if how else (problems.evaluation, [], [])
        )
        folder.write_recipe(config)
        folder.write_environment(device=str(self.session.policy.model.decoder.device))
        if folder.note:
            self.session.terminal.line(folder.note, "yellow")
        self.session.terminal.plan(self._plan(problems, tasks, lengths, notes, len(held_out.tasks), folder))
        evaluations: list[Evaluation] = []
        history: list[dict[str, float]] = []  # figures only: groups of a long run would not fit

        async def evaluate_at(step: int, title: str) -> None:
            if how is not None:
                evaluations.append(await self.session.evaluate(held_out.tasks, how, title))
                folder.append_evaluation(step, evaluations[-1])

        await evaluate_at(0, "before training")
        towards = make_reference(config, self.session.policy)
        trainer = make_trainer(config, self.session.policy)
        with (
            RolloutWriter(folder.rollouts) as recorder,
            _Saving(trainer, folder, self.session.terminal) as saving,
        ):
            loop = self._loop(stream, trainer, towards, recorder, folder, saving)
            for index in range(config.training.steps):
                history.append(metric_values((await loop.step(index)).metrics))
                if _due(config.training.save_every, saving.done):
                    saving.save()
                if how and _due(how.every, saving.done) and saving.done < config.training.steps:
                    await evaluate_at(saving.done, f"after step {saving.done}")
        await evaluate_at(config.training.steps, "after training")
        self.session.terminal.findings(_verdict(history, evaluations))
        self.session.terminal.line(
            f"files in {folder.path}; a Hugging Face folder: turnpoint export {folder.path} DIR"
        )
        before, after = (evaluations[0], evaluations[-1]) if evaluations else (None, None)
        return TrainResult(folder=folder.path, before=before, after=after)

    def _plan(
        self,
        problems: Problems,
        tasks: Dataset,
        lengths: Sequence[int],
        notes: Sequence[str],
        num_held_out: int,
        folder: RunFolder,
    ) -> Plan:
        model = self.session.policy.model
        first = self.session.policy.renderer.prompt(tasks.tasks[0].messages)
        return make_plan(
            self.session.config,
            model=ModelFacts(
                name=model.source,
                parameters=self.session.policy.parameters,
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
        stream: TaskStream,
        trainer: Trainer,
        towards: Reference | None,
        recorder: RolloutWriter,
        folder: RunFolder,
        saving: _Saving,
    ) -> Loop:
        config = self.session.config
        rollout, sampling, training = config.rollout, config.sampling, config.training
        return Loop(
            stream=stream,
            rollouter=Rollouter(
                self.session.policy.engine,
                self.session.policy.renderer,
                self.session.verifier,
                samples_per_prompt=rollout.samples_per_prompt,
                temperature=sampling.temperature,
                max_new_tokens=sampling.max_new_tokens,
                seed=config.seed,
            ),
            refill=make_refill(config),
            advantage=make_advantage(config),
            pack=partial(
                pack_step,
                max_tokens=training.micro_batch_tokens,
                aggregation=config.loss.aggregation,
                max_new_tokens=sampling.max_new_tokens,
                every_rollout=towards is not None,
                device=self.session.policy.model.decoder.device,
            ),
            prepare=make_preparation(config, trainer, towards),
            epochs=training.epochs,
            mini_batches=training.mini_batches,
            trainer=trainer,
            receiver=self.session.policy.engine,
            recorder=recorder,
            folder=folder,
            terminal=self.session.terminal,
            limits=FindingLimits(
                max_new_tokens=sampling.max_new_tokens,
                clip_low=config.loss.clip_low,
                clip_high=config.loss.clip_high,
                mismatch_tolerance=training.mismatch_tolerance,
                updates=config.updates_per_step,
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
