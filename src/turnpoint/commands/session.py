"""A policy and its judge at work on problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.assemble import Policy, check_gold, fit_context
from turnpoint.config import EvaluationConfig, RunConfig
from turnpoint.protocols import Verifier
from turnpoint.reports.terminal import Terminal
from turnpoint.rollout.branched import Branching
from turnpoint.rollout.evaluate import Evaluation
from turnpoint.rollout.evaluate import evaluate as evaluate_tasks
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.tasks import Dataset
from turnpoint.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a command holds while it works."""

    config: RunConfig
    policy: Policy
    verifier: Verifier
    terminal: Terminal

    def rollouter(self, samples: int, branching: Branching | None = None) -> Rollouter:
        """Returns what samples and judges groups of `samples` rollouts, as the recipe says."""
        sampling = self.config.sampling
        return Rollouter(
            self.policy.engine,
            self.policy.renderer,
            self.verifier,
            samples_per_prompt=samples,
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_new_tokens,
            seed=self.config.seed,
            branching=branching,
        )

    async def evaluate_held_out(self, dataset: Dataset, how: EvaluationConfig, title: str) -> Evaluation:
        """Evaluates the usable tasks of `dataset`."""
        usable, _, notes = await self.usable(dataset)
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
                top_k=how.top_k,
                top_p=how.top_p,
                progress=phase.advance,
            )
        self.terminal.evaluation(title, evaluation)
        return evaluation

    async def usable(self, dataset: Dataset) -> tuple[Dataset, list[int], list[str]]:
        """Returns the tasks that can be judged and answered, their prompt lengths, and what was left out."""
        sound, refused, _ = await check_gold(dataset, self.verifier, self.terminal)
        fitting, lengths, dropped = fit_context(sound, self.policy, self.config.sampling.max_new_tokens)
        return fitting, lengths, [*refused, *dropped]
