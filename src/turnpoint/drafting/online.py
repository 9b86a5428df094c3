"""Draft heads that learn on inside a run, from the rollouts of its steps, the policy detached.

They learn after the policy's update and draft with what they learnt from the next step on. The policy is
passed through without a gradient, so that its own gradients are bit for bit those of a run that sampled the
same tokens with heads that stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from turnpoint.drafting.texts import DraftHeads, DraftText, drafts_of, group_texts
from turnpoint.drafting.train import LossPlan, train_drafts
from turnpoint.metrics import Mean, Metrics, Sum
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp_folder import save_heads
from turnpoint.training.optimizer import MasterAdamW
from turnpoint.types import Group

_PLAN = LossPlan()  # heads that draft in a run overlap with it: no other loss is needed first


class OnlineHeads:
    """Trains `heads` in place, which the engine drafts with, every `every` steps of a run.

    `tokens`: at most so many of a step's rollouts, in whole texts, and at least one text; each is learned
    from once, `batch_tokens` at a time. `temperature`: of sampling. The same steps give the same heads on a
    CPU, also when `state_dict` goes on in another process.
    """

    def __init__(
        self,
        heads: DraftHeads,
        decoder: Decoder,
        *,
        depth: int,
        every: int,
        tokens: int,
        batch_tokens: int,
        learning_rate: float,
        temperature: float,
        seed: int,
    ) -> None:
        self._heads = heads.requires_grad_(True)
        self._decoder = decoder
        self._optimizer = MasterAdamW(heads, learning_rate=learning_rate)
        self._depth = depth
        self._every = every
        self._tokens = tokens
        self._batch_tokens = batch_tokens
        self._temperature = temperature
        self._seed = seed

    def due(self, step: int) -> bool:
        """Whether they learn after `step` steps."""
        return step % self._every == 0

    def learn(self, step: int, groups: Sequence[Group], *, progress: Callable[[int, int], None]) -> Metrics:
        """Learns from the rollouts `groups` of `step`, counted from 1; nothing where none can be drafted in.

        Metrics: `draft/trained_tokens`, and `draft/loss`, a mean over anchors before the updates.
        """
        order = np.random.default_rng([self._seed, step])
        texts = self._chosen([text for group in groups for text in group_texts(group)], order)
        total, learned, lost, anchors = sum(map(len, texts)), 0, 0.0, 0
        if texts:
            for figures in train_drafts(
                self._heads,
                self._decoder,
                texts,
                optimizer=self._optimizer,
                depth=self._depth,
                steps=len(texts),
                batch_tokens=self._batch_tokens,
                plan=_PLAN,
                temperature=self._temperature,
                seed=int(cast(int, order.integers(2**31))),
                progress=progress,
            ):
                learned += figures.tokens
                lost, anchors = lost + figures.loss * figures.anchors, anchors + figures.anchors
                if learned == total:  # all of them once
                    break
        return {"draft/trained_tokens": Sum(learned), "draft/loss": Mean(lost, anchors)}

    def _chosen(self, texts: Sequence[DraftText], order: np.random.Generator) -> list[DraftText]:
        """Returns texts in an order that is drawn, as many as fit."""
        usable = [it for it in texts if drafts_of(it)]
        chosen, left = list[DraftText](), self._tokens
        drawn: list[int] = order.permutation(len(usable)).tolist()
        for index in drawn:
            left -= len(usable[index])
            if chosen and left < 0:
                break
            chosen.append(usable[index])
        return chosen

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all that learning goes on from, as flat tensors (no copies)."""
        return {**self._optimizer.state_dict(), "trained_depth": torch.tensor(self._heads.trained_depth)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state_dict` returned; raises TrainingError unless it is of such heads."""
        self._optimizer.load_state_dict({name: it for name, it in state.items() if name != "trained_depth"})
        self._heads.trained_depth = int(state["trained_depth"])

    def save(self, folder: Path) -> None:
        """Writes the heads as `save_heads` does."""
        save_heads(self._heads, folder)
