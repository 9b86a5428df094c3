"""Evaluation: every problem answered once greedily and k times by sampling, with what the figures can bear.

The greedy answers give an accuracy, the samples give avg@k: both with 95 % intervals that respect what is
independent, and beside the score of a policy that always gives the commonest answer. Outcomes are kept
problem by problem, so that two evaluations of the same problems can be compared in pairs.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from turnpoint._lines import within
from turnpoint.protocols import Engine, GenerateRequest, Renderer, Verifier
from turnpoint.rollout.concurrency import all_of
from turnpoint.rollout.evaluation_json import AttemptRecord, EvaluationRecord, OutcomeRecord
from turnpoint.rollout.intervals import Interval, clustered_interval, mean_interval
from turnpoint.rollout.pass_at_k import PassAtK, pass_at_k, powers_of_two
from turnpoint.types import FinishReason, Json, Task, Verdict

Progress: TypeAlias = Callable[[int, int], None]  # (attempts finished, tokens they generated)

SOLVED = 1.0  # a reward of at least this counts as accurate


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One answer and what it earned."""

    text: str
    tokens: int
    finish: FinishReason
    verdict: Verdict

    def to_json(self) -> dict[str, Json]:
        """Returns the attempt as JSON values."""
        return {
            "reward": self.verdict.reward,
            "valid": self.verdict.valid,
            "reason": self.verdict.reason,
            "feedback": self.verdict.feedback,
            "parts": dict(self.verdict.parts),
            "finish": self.finish.value,
            "tokens": self.tokens,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All attempts at one problem."""

    task_id: str
    greedy: Attempt
    sampled: tuple[Attempt, ...]  # k of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one way of answering earned; `None` where no attempt has a valid reward.

    Problems weigh the same: `accuracy` and `mean_reward` are means over problems of the mean over the
    problem's valid attempts. Invalid attempts are left out of both and counted by reason; truncation and
    length are over all attempts.
    """

    attempts: int
    invalid: Mapping[str, int]  # attempts by the verifier's reason
    accuracy: float | None  # share of valid attempts with reward >= 1
    accuracy_interval: Interval | None  # 95 %, `clustered_interval`
    mean_reward: float | None
    mean_reward_interval: Interval | None  # 95 %, `mean_interval` over problems
    truncated: float  # share of attempts that ran into the length limit
    mean_tokens: float  # generated, stop token included

    @property
    def num_invalid(self) -> int:
        """How many attempts have no valid reward."""
        return sum(self.invalid.values())

    def to_json(self) -> dict[str, Json]:
        """Returns the score as JSON values."""
        return {
            "attempts": self.attempts,
            "invalid": dict(self.invalid),
            "accuracy": self.accuracy,
            "accuracy_interval_95": self.accuracy_interval,
            "mean_reward": self.mean_reward,
            "mean_reward_interval_95": self.mean_reward_interval,
            "truncated": self.truncated,
            "mean_tokens": self.mean_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcomes of one evaluation and the law they were drawn from."""

    outcomes: tuple[Outcome, ...]  # in the order of the tasks
    samples: int  # k of avg@k; 0: greedy only
    temperature: float  # of the samples
    top_k: int  # of the samples, 0: no limit
    top_p: float
    max_new_tokens: int
    seed: int
    seconds: float
    majority_answer: str  # the commonest gold answer
    majority_accuracy: float  # what always giving it would score

    @property
    def greedy(self) -> Score:
        """The score of the likeliest answers, one per problem."""
        return _score([[outcome.greedy] for outcome in self.outcomes])

    @property
    def sampled(self) -> Score | None:
        """avg@k with its companions; None for a greedy evaluation."""
        return _score([outcome.sampled for outcome in self.outcomes]) if self.samples else None

    @property
    def law(self) -> str:
        """What samples were drawn from, in words."""
        cut = [f"top_k {self.top_k}"] if self.top_k else []
        cut += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        return ", ".join([f"temperature {self.temperature:g}", *cut])

    @property
    def passes(self) -> list[PassAtK]:
        """pass@k of the samples, for k = 2, 4, ... and all of them."""
        valid = [valid_rewards(outcome.sampled) for outcome in self.outcomes]
        counts = [(len(rewards), sum(reward >= SOLVED for reward in rewards)) for rewards in valid]
        found = [pass_at_k(counts, k) for k in powers_of_two(self.samples)]
        return [it for it in found if it is not None]

    def to_json(self) -> dict[str, Json]:
        """Returns the figures and all outcomes as JSON values."""
        return {
            "tasks": len(self.outcomes),
            "samples": self.samples,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "seconds": self.seconds,
            "greedy": self.greedy.to_json(),
            "sampled": None if self.sampled is None else self.sampled.to_json(),
            "pass_at_k": {str(it.k): it.share for it in self.passes},
            "majority": {"answer": self.majority_answer, "accuracy": self.majority_accuracy},
            "outcomes": [
                {
                    "task": outcome.task_id,
                    "greedy": outcome.greedy.to_json(),
                    "sampled": [attempt.to_json() for attempt in outcome.sampled],
                }
                for outcome in self.outcomes
            ],
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Evaluation:
        """Returns what `to_json` wrote; raises ValueError, with the field's place, for something else."""
        read = EvaluationRecord.model_validate(record)
        outcomes: list[Outcome] = []
        for index, outcome in enumerate(read.outcomes):
            with within(f".outcomes[{index}]"):
                outcomes.append(_outcome(outcome, read.samples))
        return Evaluation(
            outcomes=tuple(outcomes),
            samples=read.samples,
            temperature=read.temperature,
            top_k=read.top_k,
            top_p=read.top_p,
            max_new_tokens=read.max_new_tokens,
            seed=read.seed,
            seconds=read.seconds,
            majority_answer=read.majority.answer,
            majority_accuracy=read.majority.accuracy,
        )


def _outcome(read: OutcomeRecord, samples: int) -> Outcome:
    if len(read.sampled) != samples:
        raise ValueError(f".sampled: {len(read.sampled)} attempts, expected {samples}")
    sampled: list[Attempt] = []
    for index, attempt in enumerate(read.sampled):
        with within(f".sampled[{index}]"):
            sampled.append(_read_attempt(attempt))
    with within(".greedy"):
        return Outcome(task_id=read.task, greedy=_read_attempt(read.greedy), sampled=tuple(sampled))


def _read_attempt(read: AttemptRecord) -> Attempt:
    return Attempt(text=read.text, tokens=read.tokens, finish=read.finish, verdict=read.verdict())


async def evaluate(
    tasks: Sequence[Task],
    *,
    engine: Engine,
    renderer: Renderer,
    verifier: Verifier,
    samples: int,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    top_k: int = 0,
    top_p: float = 1.0,
    progress: Progress | None = None,
) -> Evaluation:
    """Returns what the engine's present weights earn on `tasks`: greedily, and `samples` times each.

    Samples are drawn at `temperature`, cut to `top_k` and `top_p`. All attempts are in flight together and
    are judged as they finish. `progress(1, tokens)` is called for each. The draws depend on `seed` and task
    ids alone, so repeating an evaluation repeats it. Prompts must fit the context; nothing is cut. An invalid
    verdict is data. Raises ValueError without tasks, and EngineError or VerifierError, with every other
    attempt cancelled.
    """
    if not tasks:
        raise ValueError("nothing to evaluate: no tasks were given")
    started = time.perf_counter()

    async def outcome(task: Task) -> Outcome:
        greedy = GenerateRequest(
            id=f"evaluate/{task.id}/greedy",
            prompt_ids=renderer.prompt(task.messages),
            max_tokens=max_new_tokens,
            temperature=0.0,
            stop_ids=renderer.stop_ids,
            stop_strings=renderer.stop_strings,
            seed=seed,
        )
        drawn = replace(greedy, temperature=temperature, top_k=top_k, top_p=top_p)
        requests = [greedy, *(replace(drawn, id=f"evaluate/{task.id}/{it}") for it in range(samples))]
        attempts = await all_of([_attempt(task, each, engine, verifier, progress) for each in requests])
        return Outcome(task_id=task.id, greedy=attempts[0], sampled=tuple(attempts[1:]))

    outcomes = await all_of([outcome(task) for task in tasks])
    majority, count = Counter(task.answer for task in tasks).most_common(1)[0]
    return Evaluation(
        outcomes=tuple(outcomes),
        samples=samples,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        seed=seed,
        seconds=time.perf_counter() - started,
        majority_answer=majority,
        majority_accuracy=count / len(tasks),
    )


async def _attempt(
    task: Task, request: GenerateRequest, engine: Engine, verifier: Verifier, progress: Progress | None
) -> Attempt:
    completion = await engine.generate(request)
    verdict = await verifier.verify(task, completion.text)
    tokens = len(completion.token_ids)
    if progress is not None:
        progress(1, tokens)
    return Attempt(text=completion.text, tokens=tokens, finish=completion.finish, verdict=verdict)


def _score(problems: Sequence[Sequence[Attempt]]) -> Score:
    attempts = [attempt for problem in problems for attempt in problem]
    reasons = Counter(attempt.verdict.reason for attempt in attempts if not attempt.verdict.valid)
    rewards = [valid_rewards(problem) for problem in problems]
    valid = [of_problem for of_problem in rewards if of_problem]
    solved = [[float(reward >= SOLVED) for reward in of_problem] for of_problem in valid]
    means = [statistics.fmean(of_problem) for of_problem in valid]
    return Score(
        attempts=len(attempts),
        invalid=dict(reasons.most_common()),
        accuracy=statistics.fmean(map(statistics.fmean, solved)) if solved else None,
        accuracy_interval=clustered_interval(solved) if solved else None,
        mean_reward=statistics.fmean(means) if means else None,
        mean_reward_interval=mean_interval(means),
        truncated=statistics.fmean(attempt.finish is FinishReason.LENGTH for attempt in attempts),
        mean_tokens=statistics.fmean(attempt.tokens for attempt in attempts),
    )


def valid_rewards(attempts: Sequence[Attempt]) -> list[float]:
    """Returns the rewards of the valid attempts, in order."""
    verdicts = [attempt.verdict for attempt in attempts]
    return [verdict.reward for verdict in verdicts if verdict.valid and verdict.reward is not None]
