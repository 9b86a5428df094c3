"""`turnpoint train`: checks, plans, trains, evaluates, and saves what was learnt whatever ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnpoint.assemble import Problems, open_verifier
from turnpoint.branches import Branches, make_branches
from turnpoint.calibration import calibrate
from turnpoint.commands.common import model_facts, read_policy, read_problems
from turnpoint.commands.past import Start, take_up
from turnpoint.commands.saving import Saving
from turnpoint.commands.session import Session
from turnpoint.config import OverlongPenalty, RunConfig
from turnpoint.distill import Opened, open_teachers
from turnpoint.drafting.online import OnlineHeads
from turnpoint.metrics import Mean, Metrics, metric_values
from turnpoint.objective import (
    make_advantage,
    make_preparation,
    make_reference,
    make_refill,
    make_trainer,
)
from turnpoint.reports.branching_metrics import AGREEMENT
from turnpoint.reports.comparison import run_verdict
from turnpoint.reports.findings import FindingLimits
from turnpoint.reports.plan import Plan, make_plan
from turnpoint.reports.run_lock import locked
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_evaluations
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.trackers import Trackers
from turnpoint.rollout.evaluate import Evaluation
from turnpoint.rollout.recorder import RolloutWriter
from turnpoint.tasks import BatchOrder, Dataset, Fingerprint, TaskStream
from turnpoint.training.average import Averages
from turnpoint.training.loop import Loop, publish
from turnpoint.training.packing import pack_step, together
from turnpoint.training.reference import Reference
from turnpoint.training.step import Trainer
from turnpoint.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Where a run's files are and what its first and last evaluation found; None without `evaluation`."""

    folder: Path
    before: Evaluation | None
    after: Evaluation | None


def train(config: RunConfig) -> TrainResult:
    """Trains as `config` says, in a new run folder, and returns where the files are.

    Raises UserError before anything is spent when the recipe cannot work. Ctrl-C (KeyboardInterrupt) is
    raised after a checkpoint of the last completed step has been saved; `resume` goes on from there.
    """
    terminal = Terminal()
    problems = read_problems(config, terminal)
    folder = RunFolder.create(config.output_dir, config.name)
    with locked(folder.path):
        try:
            return run(config, problems, folder, Start(), terminal)
        finally:
            folder.discard_if_unused()


def run(
    config: RunConfig, problems: Problems, folder: RunFolder, start: Start, terminal: Terminal
) -> TrainResult:
    """Trains from `start` to the last step; `folder` is locked."""
    with (
        open_verifier(config) as verifier,
        Trackers.of(config.trackers, folder=folder.path, say=terminal.line) as trackers,
    ):
        policy = read_policy(config, problems, terminal)
        session = Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
        training = _Training(session=session, folder=folder, trackers=trackers)
        return asyncio.run(training.train(problems, start))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """One run from its first check to its verdict."""

    session: Session
    folder: RunFolder
    trackers: Trackers

    async def train(self, problems: Problems, start: Start) -> TrainResult:
        """Checks, plans, trains and evaluates; saves what was learnt whatever ends it."""
        config, how = self.session.config, self.session.config.evaluation
        tasks, lengths, notes = await self.session.usable(problems.train)
        stream = self._stream(tasks.tasks, start)
        held_out, _, _ = (
            await self.session.usable(problems.evaluation) if how else (problems.evaluation, [], [])
        )
        opened, calibrated = await self._teachers(problems, tasks, lengths)
        history = take_up(
            self.folder,
            start,
            config,
            self.session.policy.model,
            _fingerprints(problems, tasks, held_out),
            self.session.terminal,
            teachers=opened.weights if opened else None,
        )
        self.session.terminal.plan(self._plan(problems, tasks, lengths, notes, len(held_out.tasks), opened))
        self.trackers.start()
        towards = make_reference(config, self.session.policy)  # of the model as it was before training
        branches = self._branches(opened, history)
        averages = opened.averages if opened else Averages({})
        trainer, heads = self._trainer(start, opened, averages), self._heads(start)
        evaluations = _Evaluations(
            session=self.session,
            folder=self.folder,
            trackers=self.trackers,
            trainer=trainer,
            tasks=held_out.tasks,
            by_step=read_evaluations(self.folder.evaluations),
        )
        if start.position.step == 0:
            await evaluations.at(0, "before training")
        with (
            RolloutWriter(self.folder.rollouts) as recorder,
            Saving(
                trainer,
                self.folder,
                self.session.terminal,
                drawn=lambda _: stream.position,
                begun=start.position,
                keep=config.training.keep,
                teachers=averages.state_dict,
                heads=heads,
                way_on=f"; to go on: turnpoint train {self.folder.path}",
            ) as saving,
        ):
            learned = partial(_learned, averages, trainer, saving)
            loop = self._loop(
                stream, trainer, towards, branches, opened, heads, calibrated, recorder, learned
            )
            for index in range(start.position.step, config.training.steps):
                if how and _due(how.every, index):
                    await evaluations.at(index, f"after step {index}")
                history.append(metric_values((await loop.step(index)).metrics))
                if _due(config.training.save_every, saving.done):
                    saving.save()
        await evaluations.at(config.training.steps, "after training")
        return self._result(history, evaluations.by_step)

    def _trainer(self, start: Start, opened: Opened | None, averages: Averages) -> Trainer:
        """Returns the trainer, with what goes on from `start` where it was: weights, engine, averages."""
        config, policy = self.session.config, self.session.policy
        trainer = make_trainer(config, policy, teachers=opened.decoders if opened else None)
        if start.state is not None:
            trainer.load_state_dict(start.state)
            publish(trainer, policy.engine, version=start.position.step)
            averages.load_state_dict(start.teachers)
        return trainer

    def _heads(self, start: Start) -> OnlineHeads | None:
        """Returns the draft heads that learn in this run, as they were at `start`; None without."""
        config, policy = self.session.config, self.session.policy
        draft = config.engine.draft
        if policy.learning is None or draft is None or draft.training is None:
            return None
        heads = OnlineHeads(
            policy.learning,
            policy.model.decoder,
            depth=draft.depth,
            every=draft.training.every,
            tokens=draft.training.tokens,
            batch_tokens=draft.training.batch_tokens,
            learning_rate=draft.training.learning_rate,
            temperature=config.sampling.temperature,
            seed=config.seed,
        )
        if start.heads:
            heads.load_state_dict(start.heads)
        return heads

    def _branches(self, opened: Opened | None, history: Sequence[Mapping[str, float]]) -> Branches | None:
        """Returns how groups fork, the gate of reflections as the steps of `history` left it."""
        remembered = opened.remembered if opened else None
        branches = make_branches(self.session.config, self.session.policy, remembered=remembered)
        if branches is not None and branches.gate is not None:
            branches.gate.observe(figures[AGREEMENT] for figures in history if AGREEMENT in figures)
        return branches

    def _stream(self, tasks: Sequence[Task], start: Start) -> TaskStream:
        size, seed = self.session.config.rollout.prompts_per_step, self.session.config.seed
        order = BatchOrder(num_tasks=len(tasks), batch_size=size, seed=seed)
        return TaskStream(tasks, order, position=start.position.tasks)

    def _result(
        self, history: Sequence[Mapping[str, float]], evaluations: Mapping[int, Evaluation]
    ) -> TrainResult:
        """Says what came of the run."""
        self.session.terminal.findings(run_verdict(history, evaluations))
        self.session.terminal.line(
            f"files in {self.folder.path}; a Hugging Face folder: turnpoint export {self.folder.path} DIR"
        )
        before, after = evaluations.get(0), evaluations.get(self.session.config.training.steps)
        return TrainResult(folder=self.folder.path, before=before, after=after)

    async def _teachers(
        self, problems: Problems, tasks: Dataset, lengths: Sequence[int]
    ) -> tuple[Opened | None, Metrics]:
        """Opens the teachers, audited and calibrated, before anything is spent."""
        config, terminal = self.session.config, self.session.terminal
        if config.distill is None:
            return None, {}
        with terminal.phase("opening teachers"):
            opened = await open_teachers(
                config,
                config.distill,
                self.session.policy,
                tasks.tasks,
                examples=problems.examples,
                longest=max(lengths) + config.sampling.max_new_tokens,
            )
        for note in opened.notes:
            terminal.line(note, "yellow")
        return opened, await self._calibrate(opened, tasks)

    async def _calibrate(self, opened: Opened, tasks: Dataset) -> Metrics:
        """Makes sure that asking as teachers are asked gives the policy's law back; returns figures."""
        session = self.session
        with session.terminal.phase("calibrating teachers"):
            found = await calibrate(session.config, session.policy, tasks.tasks, opened.equals())
        opened.teaching.rest()
        for one in found:
            session.terminal.line(one.text(tolerance=session.config.training.mismatch_tolerance))
        return {"teacher/calibration": Mean(sum(one.mean for one in found), len(found))}

    def _plan(
        self,
        problems: Problems,
        tasks: Dataset,
        lengths: Sequence[int],
        notes: Sequence[str],
        num_held_out: int,
        opened: Opened | None,
    ) -> Plan:
        model = self.session.policy.model
        first = self.session.policy.renderer.prompt(tasks.tasks[0].messages)
        return make_plan(
            self.session.config,
            model=model_facts(model),
            data=[*problems.train.report.lines(), *notes],
            num_train=len(tasks.tasks),
            num_eval=num_held_out,
            prompt_lengths=lengths,
            first_prompt=model.tokenizer.decode(first.tolist(), skip_special_tokens=False),
            folder=self.folder.path,
            workers=self.session.policy.engine.workers,
            threads=self.session.policy.engine.threads,
            teachers=[memory.line() for memory in opened.memory] if opened else (),
        )

    def _loop(
        self,
        stream: TaskStream,
        trainer: Trainer,
        towards: Reference | None,
        branches: Branches | None,
        opened: Opened | None,
        heads: OnlineHeads | None,
        calibrated: Metrics,
        recorder: RolloutWriter,
        learned: Callable[[int], None],
    ) -> Loop:
        config = self.session.config
        sampling, training = config.sampling, config.training
        return Loop(
            stream=stream,
            rollouter=self.session.rollouter(
                config.rollout.samples_per_prompt, branches.branching if branches else None
            ),
            gate=branches.gate if branches else None,
            refill=make_refill(config),
            advantage=make_advantage(config),
            teaching=opened.teaching if opened else None,
            calibrated=calibrated,
            pack=partial(
                pack_step,
                max_tokens=training.micro_batch_tokens,
                aggregation=config.loss.aggregation,
                max_new_tokens=sampling.max_new_tokens,
                every_rollout=towards is not None,
                teacher=opened.rows if opened else together,
                device=self.session.policy.model.decoder.device,
            ),
            prepare=make_preparation(config, trainer, towards),
            epochs=training.epochs,
            mini_batches=training.mini_batches,
            trainer=trainer,
            receiver=self.session.policy.engine,
            drafted=self.session.policy.engine_stats if config.engine.draft else None,
            heads=heads,
            recorder=recorder,
            folder=self.folder,
            trackers=self.trackers,
            terminal=self.session.terminal,
            limits=FindingLimits(
                max_new_tokens=sampling.max_new_tokens,
                clip_low=config.loss.clip_low,
                clip_high=config.loss.clip_high,
                mismatch_tolerance=training.mismatch_tolerance,
                updates=config.updates_per_step,
                beside=_beside_rewards(config),
                rewards_teach=not config.taught_only,
            ),
            learned=learned,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluations:
    """The evaluations of a run, each made once, also when the run stops and goes on."""

    session: Session
    folder: RunFolder
    trackers: Trackers
    trainer: Trainer
    tasks: Sequence[Task]
    by_step: dict[int, Evaluation]

    async def at(self, step: int, title: str) -> None:
        """Evaluates what `step` steps have made of the policy, unless that is known."""
        how = self.session.config.evaluation
        if how is None or step in self.by_step:
            return
        self.by_step[step] = await self.session.evaluate(self.tasks, how, title)
        self.folder.append_evaluation(step, self.by_step[step])
        self.trackers.evaluation(step, self.by_step[step])
        # The engine has cached these prompts, and what is cached is rounded as it was computed: a run that
        # goes on from here without evaluating must find the same engine, an empty one.
        publish(self.trainer, self.session.policy.engine, version=step)


def _learned(averages: Averages, trainer: Trainer, saving: Saving, done: int) -> None:
    averages.follow(trainer.state_dict())
    saving.count(done)


def _fingerprints(problems: Problems, train: Dataset, held_out: Dataset) -> dict[str, Fingerprint]:
    return {
        "few-shot examples": Fingerprint.of(json.dumps(pair).encode() for pair in problems.examples),
        "problems to train on": Fingerprint.of_tasks(train),
        "problems to evaluate": Fingerprint.of_tasks(held_out),
    }


def _beside_rewards(config: RunConfig) -> tuple[str, ...]:
    length = ("what length costs",) if isinstance(config.advantage.overlong, OverlongPenalty) else ()
    pull = ("the pull of the reference",) if config.kl else ()
    return (*length, *pull, *(("the teacher",) if config.distill else ()))


def _due(every: int | None, done: int) -> bool:
    return every is not None and done % every == 0
