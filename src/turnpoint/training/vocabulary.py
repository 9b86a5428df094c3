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
from turnpoint.losses.laws import log_laws
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
    k: int | None = None  # of a loss that is exact on the policy's k likeliest tokens

    def loss_of(
        self, student: Decoder, hidden: Tensor, tree: PackedTree, logprobs: Tensor, denominator: float
    ) -> tuple[Tensor, Metrics]:
        """Returns the loss of one tree, differentiable in `hidden` [N, D] and the student's head.

        Metrics: `teacher/loss`, the mean of D, nats a token, with several teachers also `teacher/NAME/loss`;
        those of `Watched`.
        """
        taught = tree.teacher_coef != 0
        if not bool(taught.any()):
            return logprobs.sum() * 0.0, {}
        decoder = self.decoders[tree.teacher]
        with torch.no_grad():
            theirs = tree_hidden(decoder, tree)
            ratio = (logprobs.detach() - tree.sampled_logprobs).exp().clamp(max=_MOST_WEIGHT)
        watched = Watched(self.loss, k=self.k)
        values = chunked_distillation(
            watched,
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
        return loss, {"teacher/loss": found, **own, **watched.metrics()}


class Watched:
    """A loss over two laws, [n, V] each, that adds up figures of them on its way.

    Only where no gradient is wanted: that is once for every token, and what backward computes again is not
    counted twice. `k`: of the policy's likeliest tokens whose probability is told.
    """

    def __init__(self, loss: DistillationLoss, *, k: int | None) -> None:
        self._loss, self._k = loss, k
        self._sums: dict[str, float] = {}
        self._count = 0

    def __call__(
        self,
        *,
        student_logits: Tensor,
        teacher_logits: Tensor,
        sampled_ids: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Returns what the loss says of each token."""
        if not torch.is_grad_enabled():
            self._watch(student_logits, teacher_logits)
        return self._loss(
            student_logits=student_logits,
            teacher_logits=teacher_logits,
            sampled_ids=sampled_ids,
            weights=weights,
        )

    def metrics(self) -> Metrics:
        """Returns means over tokens, of the policy p and the teacher q.

        `teacher/kl_exact`: KL(p || q), and `teacher/entropy`, of q, nats. `teacher/mass_policy` and
        `teacher/mass_teacher`: the probability of the k tokens likeliest under p, of p and of q.
        """
        return {name: Mean(total, self._count) for name, total in self._sums.items()}

    def _watch(self, student_logits: Tensor, teacher_logits: Tensor) -> None:
        log_p, log_q = log_laws(student_logits=student_logits, teacher_logits=teacher_logits)
        found = {
            "teacher/kl_exact": (log_p.exp() * (log_p - log_q)).sum(-1),
            "teacher/entropy": -(log_q.exp() * log_q).sum(-1),
        }
        if self._k is not None:
            likeliest = log_p.topk(self._k, dim=-1, sorted=False).indices
            found["teacher/mass_policy"] = log_p.gather(-1, likeliest).exp().sum(-1)
            found["teacher/mass_teacher"] = log_q.gather(-1, likeliest).exp().sum(-1)
        for name, values in found.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())
        self._count += len(log_p)
