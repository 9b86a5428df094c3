"""A teacher's whole law at every trained token, as a loss: without the noise of the sampled one.

    loss  =  sum_t  coef w_t D(p_t, q_t)  /  denominator,        t: tokens with a teacher's word

beside the policy gradient of the task, over the same denominator. The teacher of a packed tree runs once over
it, as the student does; neither's logits are kept (`turnpoint.losses.chunked`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from turnpoint.losses.chunked import chunked_distillation
from turnpoint.losses.distillation import DistillationLoss
from turnpoint.losses.reductions import reduce_tokens
from turnpoint.metrics import Mean, Metrics
from turnpoint.models.decoder import Decoder
from turnpoint.models.heads import linear_head
from turnpoint.training.forward import tree_hidden
from turnpoint.training.row import PackedTree

_MOST_WEIGHT = 2.0  # of a token drawn from a law that is older than the student's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabularyTeachers:
    """Decoders over the student's ids, by name, and the loss that draws the student to them."""

    decoders: Mapping[str, Decoder]
    loss: DistillationLoss
    chunk: int  # tokens whose logits exist at the same time
    temperature: float

    def loss_of(
        self, student: Decoder, hidden: Tensor, tree: PackedTree, logprobs: Tensor, denominator: float
    ) -> tuple[Tensor, Metrics]:
        """Returns the loss of one tree, differentiable in `hidden` [N, D] and the student's head.

        Metrics: `teacher/loss`, the mean of D, nats a token; with several teachers also `teacher/NAME/loss`.
        """
        taught = tree.teacher_coef != 0
        if not bool(taught.any()):
            return logprobs.sum() * 0.0, {}
        decoder = self.decoders[tree.teacher]
        with torch.no_grad():
            theirs = tree_hidden(decoder, tree)
            ratio = (logprobs.detach() - tree.sampled_logprobs).exp().clamp(max=_MOST_WEIGHT)
        values = chunked_distillation(
            self.loss,
            student_head=linear_head(student),
            student_hidden=hidden[taught],
            teacher_head=linear_head(decoder),
            teacher_hidden=theirs[taught],
            chunk=self.chunk,
            temperature=self.temperature,
            vocab_size=student.vocab_size,
            sampled_ids=tree.targets[taught],
            weights=ratio[taught],
        )
        loss = reduce_tokens(
            values * tree.teacher_coef[taught],
            mask=torch.ones_like(values, dtype=torch.bool),
            denominator=denominator,
            weights=tree.weights[taught],
        )
        found = Mean(float(values.detach().sum()), len(values))
        own = {f"teacher/{tree.teacher}/loss": found} if len(self.decoders) > 1 else {}
        return loss, {"teacher/loss": found, **own}
