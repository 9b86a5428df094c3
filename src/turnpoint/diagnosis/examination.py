"""All checks of one recipe in order, on the live model; the diagnosis is all that they leave behind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from turnpoint.assemble import Policy, Problems, fit_context
from turnpoint.config import RunConfig
from turnpoint.diagnosis.agreement import check_forks, check_logprobs, first_tokens
from turnpoint.diagnosis.budget import Budget
from turnpoint.diagnosis.checks import Check, Diagnosis, failed
from turnpoint.diagnosis.judging import check_gold_answers, check_isolation, check_wrong_answers
from turnpoint.diagnosis.prompts import (
    check_lengths,
    check_problems,
    check_stop,
    check_template,
    check_vocabulary,
)
from turnpoint.diagnosis.rollouts import check_endings, check_signal
from turnpoint.diagnosis.room import Room
from turnpoint.diagnosis.sampling import Sample, affordable, measure_speed, sample
from turnpoint.diagnosis.teachers import audit_teachers, check_words
from turnpoint.distill import Opened
from turnpoint.engine.engine import TorchEngine
from turnpoint.errors import DataError, TurnpointError
from turnpoint.objective import make_trainer
from turnpoint.protocols import Verifier
from turnpoint.reports.plan import prompt_lines
from turnpoint.reports.terminal import Terminal
from turnpoint.tasks import BatchOrder, Dataset
from turnpoint.training.step import Trainer
from turnpoint.types import Task
from turnpoint.verifiers import CodeVerifier

_JUDGED = 512  # sampled tokens that each teacher is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is examined, and with what."""

    config: RunConfig
    problems: Problems
    policy: Policy
    verifier: Verifier
    terminal: Terminal
    room: Room | None  # None: memory cannot be measured here
    seconds: float  # about what the sampled rollouts may take


async def examine(subject: Subject) -> Diagnosis:
    """Returns the diagnosis of a recipe.

    Changes no weight, leaves no gradient and writes no file. A check whose grounds are missing is left out,
    after the one that says what is missing. Raises nothing that a `TurnpointError` could say: that is a
    failed check.
    """
    return await _Examination(subject).run()


@dataclass(slots=True)
class _Examination:
    subject: Subject
    checks: list[Check] = field(default_factory=list[Check])

    async def run(self) -> Diagnosis:
        subject = self.subject
        # a pull to a reference is left out: its forward pass is counted, the rest of it costs nothing
        trainer = make_trainer(subject.config.model_copy(update={"kl": None}), subject.policy)
        budget = Budget.begin(subject.config, subject.policy, trainer, subject.room)
        train, evaluation = await self._judge()
        self._templates(train.tasks[0])
        lengths, tasks = self._lengths(train)
        held_out = len(evaluation.tasks)
        opened = await self._teachers(lengths, tasks) if tasks else None
        budget = budget.beside(opened.memory if opened else ())
        if tasks and (refused := budget.certain(max(lengths), held_out)) is not None:
            self.checks.append(refused)
        elif tasks:
            try:
                await self._live(trainer, budget, opened, self._first_step(tasks), lengths, held_out)
            except (TurnpointError, torch.OutOfMemoryError) as error:
                self.checks.append(failed("live model", " ".join(str(error).split())))
        return self._diagnosis(train.tasks[0])

    async def _judge(self) -> tuple[Dataset, Dataset]:
        """What the verifier says of the dataset; returns what it can judge, to train and to evaluate on."""
        subject, problems = self.subject, self.subject.problems
        if isinstance(subject.verifier, CodeVerifier):
            verifier = subject.verifier
            self.checks.append(check_isolation(verifier.isolation, described=verifier.describe()))
        held_out = [problems.evaluation] if problems.evaluation.tasks else []
        usable, gold = await check_gold_answers(
            [problems.train, *held_out], subject.verifier, subject.config.verifier, subject.terminal
        )
        self.checks.append(gold)
        self.checks.append(
            await check_wrong_answers(problems.train.tasks, subject.verifier, subject.config.verifier)
        )
        return usable[0], usable[-1] if held_out else problems.evaluation

    def _templates(self, first: Task) -> None:
        """What is fed and what ends a turn."""
        config, model = self.subject.config, self.subject.policy.model
        prompt = self.subject.policy.renderer.prompt(first.messages)
        self.checks.append(
            check_template(config, tokenizer=model.tokenizer, prompt=prompt, task=first),
        )
        self.checks.append(
            check_stop(
                config,
                tokenizer=model.tokenizer,
                generation_config=model.decoder.model.generation_config,
            )
        )

    def _lengths(self, train: Dataset) -> tuple[list[int], Sequence[Task]]:
        """Returns the lengths of the prompts that fit, and their tasks; none when none fits."""
        config, policy = self.subject.config, self.subject.policy
        new, needed = config.sampling.max_new_tokens, config.rollout.prompts_per_step
        try:
            with self.subject.terminal.phase("measuring prompts"):
                fitting, lengths, dropped = fit_context(train, policy, new)
        except DataError as error:
            self.checks.append(failed("lengths", str(error)))
            return [], []
        self.checks.append(
            check_lengths(
                lengths,
                dropped=dropped,
                context=policy.model.context_length,
                max_new_tokens=new,
            )
        )
        self.checks.append(check_problems(len(fitting.tasks), needed=needed))
        return lengths, fitting.tasks

    def _first_step(self, tasks: Sequence[Task]) -> list[Task]:
        config, count = self.subject.config, len(tasks)
        size = min(config.rollout.prompts_per_step, count)
        order = BatchOrder(num_tasks=count, batch_size=size, seed=config.seed)
        return [tasks[index] for index in order.batch(0)]

    async def _teachers(self, lengths: Sequence[int], tasks: Sequence[Task]) -> Opened | None:
        """Returns the teachers of the recipe; None where it has none, or one that must not teach."""
        config, how = self.subject.config, self.subject.config.distill
        if how is None:
            return None
        with self.subject.terminal.phase("opening teachers"):
            audited = await audit_teachers(
                config,
                how,
                self.subject.policy,
                tasks,
                examples=self.subject.problems.examples,
                longest=max(lengths) + config.sampling.max_new_tokens,
            )
        self.checks += audited.checks
        return audited.opened

    async def _live(
        self,
        trainer: Trainer,
        budget: Budget,
        opened: Opened | None,
        tasks: Sequence[Task],
        lengths: Sequence[int],
        held_out: int,
    ) -> None:
        """What only the running model can say."""
        subject, config = self.subject, self.subject.config
        with subject.terminal.phase("measuring the engine"):
            speed = await measure_speed(config, subject.policy, tasks, seconds=subject.seconds)
        count, limit = affordable(
            prompts=len(tasks),
            max_new_tokens=config.sampling.max_new_tokens,
            decode_step=speed.decode_step,
            seconds=subject.seconds,
        )
        found = await sample(
            config, subject.policy, subject.verifier, tasks[:count], limit=limit, terminal=subject.terminal
        )
        self._vocabulary(found)
        self.checks += [check_endings(found), check_signal(found, taught=config.distill is not None)]
        await self._agreement(found, trainer)
        if opened is not None:
            with subject.terminal.phase("asking teachers"):
                some = first_tokens(found.groups, _JUDGED)
                self.checks += await check_words(config, subject.policy, opened, tasks, some)
        with subject.terminal.phase("measuring the trainer"):
            self.checks += budget.checks(
                found,
                speed,
                median_prompt=round(statistics.median(lengths)),
                longest_prompt=max(lengths),
                held_out=held_out,
                seconds=subject.seconds,
            )

    def _vocabulary(self, found: Sample) -> None:
        model = self.subject.policy.model
        self.checks.append(
            check_vocabulary(
                tokenizer=model.tokenizer,
                vocab_size=model.decoder.vocab_size,
                rows=model.decoder.head.weight.shape[0],
                largest_sampled=max(
                    int(segment.token_ids.max())
                    for group in found.groups
                    for segment in group.tree.segments[1:]
                ),
            )
        )

    async def _agreement(self, found: Sample, trainer: Trainer) -> None:
        config, policy = self.subject.config, self.subject.policy
        tolerance = config.training.mismatch_tolerance
        with self.subject.terminal.phase("comparing engine and trainer"):
            self.checks.append(
                check_logprobs(found.groups, trainer, tolerance=tolerance, device=policy.model.decoder.device)
            )
        with self.subject.terminal.phase("comparing forks with a fresh prefill"):
            fresh = TorchEngine(
                policy.model.decoder,
                decode=policy.renderer.text,
                context_length=policy.model.context_length,
                max_step_tokens=config.engine.max_step_tokens,
                cache_tokens=0,
            )
            self.checks.append(
                await check_forks(
                    found.groups,
                    policy.engine,
                    fresh,
                    temperature=config.sampling.temperature,
                    tolerance=tolerance,
                )
            )
            await fresh.close()

    def _diagnosis(self, first: Task) -> Diagnosis:
        prompt = self.subject.policy.renderer.prompt(first.messages)
        shown = self.subject.policy.model.tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
        return Diagnosis(
            name=self.subject.config.name,
            checks=tuple(self.checks),
            first_prompt=tuple(prompt_lines(shown)),
            first_prompt_tokens=len(prompt),
        )
