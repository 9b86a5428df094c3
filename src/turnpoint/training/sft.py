"""Supervised fine-tuning through the same packing and the same step: a demonstration is a group of one.

Nobody sampled the text: it is a point mass, whose log-probabilities are 0, as at temperature 0. Every token
of it has weight and advantage 1, and the loss is cross-entropy, mean over the solution tokens of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnpoint.metrics import Metrics, merge_metrics
from turnpoint.models.demonstration import Demonstration
from turnpoint.reports.sft import HeldOut
from turnpoint.tasks.order import BatchOrder
from turnpoint.tasks.solutions import SolvedTask
from turnpoint.training.packing import PackedStep, pack_step
from turnpoint.training.step import Trainer
from turnpoint.types import (
    Author,
    FinishReason,
    Group,
    Member,
    SegmentCredit,
    TreeBuilder,
    Verdict,
    float_array,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """A solved task and its ids."""

    solved: SolvedTask
    demonstration: Demonstration

    @property
    def length(self) -> int:
        """Tokens of prompt and solution together."""
        return len(self.demonstration.prompt_ids) + len(self.demonstration.token_ids)


def example_group(example: Example) -> tuple[Group, list[SegmentCredit]]:
    """Returns the example as a group of one member, and the credit that makes all of its solution train."""
    task, demonstration = example.solved.task, example.demonstration
    count = len(demonstration.token_ids)
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=demonstration.prompt_ids)
    leaf = tree.append(
        parent=prompt,
        author=Author.POLICY,
        token_ids=demonstration.token_ids,
        logprobs=[0.0] * count,
        policy_version=0,
    )
    member = Member(
        leaf=leaf,
        segments=(leaf,),
        text=example.solved.text,
        verdict=Verdict.scored(1.0),
        finish=FinishReason.STOP,
    )
    ones = float_array([1.0] * count)
    return (
        Group(id=task.id, task=task, tree=tree.freeze(), members=(member,)),
        [SegmentCredit(segment=leaf, weights=ones, advantages=ones)],
    )


def pack_examples(
    examples: Sequence[Example], *, max_tokens: int, device: torch.device | str = "cpu"
) -> PackedStep:
    """Returns `examples` as one optimiser step in micro-batches of at most `max_tokens` tokens."""
    return pack_step(
        [example_group(example) for example in examples],
        max_tokens=max_tokens,
        aggregation="token",
        max_new_tokens=max(len(example.demonstration.token_ids) for example in examples),
        device=device,
    )


def learn(trainer: Trainer, step: PackedStep, *, progress: Callable[[int, int], None]) -> Metrics:
    """Takes one optimiser step and returns its metrics.

    Without `mismatch`, which compares with a sampling engine: there was none.
    """
    metrics = merge_metrics([trainer.forward_backward(step, progress=progress), trainer.optim_step()])
    return {name: metric for name, metric in metrics.items() if name != "mismatch"}


def measure(trainer: Trainer, step: PackedStep, *, progress: Callable[[int, int], None]) -> HeldOut:
    """Returns the cross-entropy of all examples in `step` under the present weights."""
    total = 0.0
    for tree in step.trees:
        logprobs: Tensor = trainer.logprobs(tree)
        total -= float(logprobs.double().sum())
        progress(1, len(tree.token_ids))
    return HeldOut(
        cross_entropy=total / step.trained_tokens, tokens=step.trained_tokens, examples=step.trained_rollouts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which examples each step takes, so that `epochs` passes end exactly.

    >>> schedule = Schedule(order=BatchOrder(num_tasks=5, batch_size=2, seed=0), epochs=1.0)
    >>> schedule.steps, [len(schedule.batch(step)) for step in range(3)]
    (3, [2, 2, 1])
    """

    order: BatchOrder
    epochs: float

    @property
    def examples(self) -> int:
        """How many examples are trained on, repetitions counted."""
        return math.ceil(round(self.epochs * self.order.num_tasks, 6))  # 0.1 * 30 is a little over 3

    @property
    def steps(self) -> int:
        """How many optimiser steps that takes."""
        return -(-self.examples // self.order.batch_size)

    def batch(self, step: int) -> list[int]:
        """Returns the indices of the examples of `step`, counted from 0; the last step may have fewer."""
        start = step * self.order.batch_size
        return self.order.take(start, min(self.order.batch_size, self.examples - start))
