"""What a batch is compared with, fixed before the first of its updates moves a weight.

Two things are asked once per batch: the trainer's own log-probabilities, when engine and trainer are to be
told apart (truncated importance weights), and those of a reference, when a KL term pulls towards it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnpoint.losses.correction import truncated_weights
from turnpoint.metrics import Metrics, merge_metrics
from turnpoint.training.packing import PackedStep
from turnpoint.training.reference import Reference
from turnpoint.training.row import PackedTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Truncated importance weights; see `turnpoint.losses.correction.truncated_weights`."""

    cap: float
    level: str  # token | sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Completes packed steps; without a correction and a reference it returns them as they are."""

    logprobs: Callable[[PackedTree], Tensor]  # of the trainer, [N] nats
    reference: Reference | None = None
    correction: Correction | None = None

    def __call__(self, step: PackedStep) -> tuple[PackedStep, Metrics]:
        """Returns `step` with the log-probabilities that its losses need, and what the correction did."""
        metrics: list[Metrics] = []
        trees: list[PackedTree] = []
        for tree in step.trees:
            if self.correction is not None:
                tree, found = _corrected(tree, self.logprobs(tree), self.correction)
                metrics.append(found)
            if self.reference is not None:
                tree = replace(tree, reference_logprobs=self.reference(tree))
            trees.append(tree)
        return replace(step, trees=tuple(trees)), merge_metrics(metrics)


def _corrected(tree: PackedTree, current: Tensor, how: Correction) -> tuple[PackedTree, Metrics]:
    weights, metrics = truncated_weights(
        old_logprobs=current,
        behaviour_logprobs=tree.sampled_logprobs,
        mask=torch.ones_like(current, dtype=torch.bool),  # what does not train was never packed
        cap=how.cap,
        level=how.level,
        sequence_ids=tree.sequence_ids,
    )
    return replace(tree, old_logprobs=current, weights=tree.weights * weights), metrics
