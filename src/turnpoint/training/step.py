"""One optimiser step over packed trees: forward and backward per tree, then AdamW, then new weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from turnpoint.credit.combine import combine_advantages
from turnpoint.errors import TrainingError
from turnpoint.losses.kl import kl_loss
from turnpoint.losses.policy_gradient import policy_gradient_loss
from turnpoint.metrics import Mean, Metric, Metrics, Sum, merge_metrics
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import Loss
from turnpoint.teachers.discount import discounted_signal
from turnpoint.teachers.signal import sampled_token_signal
from turnpoint.training.forward import hidden_logprobs, tree_hidden, tree_logprobs
from turnpoint.training.optimizer import MasterAdamW
from turnpoint.training.packing import PackedStep
from turnpoint.training.recompute import recomputable, recomputing
from turnpoint.training.row import PackedTree
from turnpoint.training.vocabulary import VocabularyTeachers


def _ignore(*_: object) -> None:
    """Nobody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A KL term: `coef` times a divergence from a reference; see `turnpoint.losses.kl.kl_loss`."""

    coef: float
    divergence: str  # reverse | forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What is made of a teacher's word: `clip` bounds |d| in nats, `discount` see `discounted_signal`."""

    clip: float | None = None
    discount: float = 0.0


class Trainer:
    """Trains `decoder` by `loss`; knows no algorithm, no engine and no file.

    `temperature` is that of sampling: log-probabilities are of softmax(logits / temperature) over the ids
    the tokenizer knows, as in the engine. Dropout is off (`Decoder` sees to it). With a `pull` every tree
    must hold `reference_logprobs`. The other settings are those of `MasterAdamW`. `head_chunk_tokens`
    trades memory for speed, never the gradient; so does `recompute`, which computes layers again in backward
    (raises ModelError for a model without layers known to it).

        metrics = merge_metrics([trainer.forward_backward(packed), trainer.optim_step()])
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        learning_rate: float,
        temperature: float = 1.0,
        loss: Loss = policy_gradient_loss,
        pull: Pull | None = None,
        signal: Signal = Signal(),
        vocabulary: VocabularyTeachers | None = None,
        head_chunk_tokens: int = 128,
        recompute: bool = False,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        schedule: str = "constant",
        warmup_steps: int = 0,
        total_steps: int | None = None,
    ) -> None:
        self._decoder = decoder
        self._loss = loss
        self._pull = pull
        self._signal = signal
        self._vocabulary = vocabulary
        self._temperature = temperature
        self._chunk = head_chunk_tokens
        self.recomputed = recomputable(decoder) if recompute else []  # layers
        self._optimizer = MasterAdamW(
            decoder.model,
            learning_rate=learning_rate,
            betas=betas,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            schedule=schedule,
            warmup_steps=warmup_steps,
            total_steps=total_steps,
        )

    @torch.no_grad()
    def logprobs(self, tree: PackedTree) -> Float[Tensor, " N"]:
        """Returns log p of `tree.targets` under the current weights, nats: to compare with the engine's."""
        return tree_logprobs(self._decoder, tree, temperature=self._temperature, chunk=self._chunk)[0]

    def forward_backward(
        self, step: PackedStep, *, progress: Callable[[int, int], None] = _ignore
    ) -> Metrics:
        """Adds the gradient of the step's loss to what `optim_step` will apply; returns its metrics.

        Where nothing trains, the loss is 0 and no gradient appears. Metrics: `loss`, `trained_tokens`;
        over trained tokens `entropy` (nats) and `mismatch` (mean |current - sampled| log-probability,
        nats: in the first pass over a batch, what trainer and engine disagree on); those of the loss.
        `progress(1, tokens)` is called after every tree.

        Raises TrainingError for a loss that is not finite and drops all gradients; weights are untouched.
        """
        parts: list[Metrics] = [{"loss": Sum(0.0), "trained_tokens": Sum(float(step.trained_tokens))}]
        for index, tree in enumerate(step.trees):
            with recomputing(self.recomputed):
                hidden = tree_hidden(self._decoder, tree)
            logprobs, entropy = hidden_logprobs(
                self._decoder, hidden, tree, temperature=self._temperature, chunk=self._chunk
            )
            loss, metrics = self._tree_loss(tree, logprobs, step.denominator)
            if self._vocabulary is not None:
                taught, found = self._vocabulary.loss_of(
                    self._decoder, hidden, tree, logprobs, step.denominator
                )
                loss, metrics = loss + taught, {**metrics, **found}
            value = loss.detach()
            if not bool(value.isfinite()):
                self._optimizer.zero_grad()
                raise TrainingError(
                    f"the loss of tree {index} of {len(step.trees)} is {float(value)}; not finite: "
                    f"{_not_finite(tree, logprobs)}; no weight was changed"
                )
            loss.backward()
            progress(1, len(tree.token_ids))
            parts += [metrics, {"loss": Sum(float(value)), **_token_means(tree, logprobs.detach(), entropy)}]
        return merge_metrics(parts)

    def gradients(self) -> dict[str, Tensor]:
        """Returns by name what `optim_step` would apply; see `MasterAdamW.gradients`."""
        return self._optimizer.gradients()

    def zero_grad(self) -> None:
        """Drops what `forward_backward` added up."""
        self._optimizer.zero_grad()

    def optim_step(self) -> Metrics:
        """Applies the gradients added up so far; see `MasterAdamW.step`."""
        return self._optimizer.step()

    def publish(self) -> dict[str, Tensor]:
        """Returns the trained weights by name, in the type they compute in, a tied one once.

        Trained are those that require a gradient: of a policy with an adapter, the adapter's.
        They share memory with the trainer: a receiver copies before the next `optim_step`.
        """
        weights = self._decoder.model.named_parameters()
        return {name: weight.detach() for name, weight in weights if weight.requires_grad}

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all that training continues from, as flat tensors; see `MasterAdamW.state_dict`."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continues from what `state_dict` returned; see `MasterAdamW.load_state_dict`."""
        self._optimizer.load_state_dict(state)

    def _advantages(self, tree: PackedTree, logprobs: Tensor) -> Tensor:
        if self._vocabulary is not None:  # which speaks for itself
            return tree.advantages
        taught = tree.teacher_coef != 0
        signal = sampled_token_signal(
            student_logprobs=logprobs,
            teacher_logprobs=tree.teacher_logprobs,
            mask=taught,
            clip=self._signal.clip,
        )
        signal = discounted_signal(
            signal, discount=self._signal.discount, sequence_ids=tree.sequence_ids, mask=taught
        )
        return combine_advantages(tree.advantages, signal, coef=tree.teacher_coef)

    def _tree_loss(self, tree: PackedTree, logprobs: Tensor, denominator: float) -> tuple[Tensor, Metrics]:
        mask = torch.ones_like(tree.targets, dtype=torch.bool)  # what does not train was never packed
        loss, metrics = self._loss(
            logprobs=logprobs,
            old_logprobs=tree.old_logprobs,
            advantages=self._advantages(tree, logprobs),
            mask=mask,
            denominator=denominator,
            sequence_ids=tree.sequence_ids,
            weights=tree.weights,
        )
        if self._pull is None:
            return loss, metrics
        assert tree.reference_logprobs is not None, "a KL term needs the reference's log-probabilities"
        kl, kl_metrics = kl_loss(
            logprobs=logprobs,
            reference_logprobs=tree.reference_logprobs,
            old_logprobs=tree.old_logprobs,
            mask=mask,
            denominator=denominator,
            divergence=self._pull.divergence,
            weights=tree.weights,
        )
        return loss + self._pull.coef * kl, {**metrics, **kl_metrics}


def _token_means(tree: PackedTree, logprobs: Tensor, entropy: Tensor) -> dict[str, Metric]:
    count = len(tree.targets)
    return {
        "entropy": Mean(float(entropy.sum()), count),
        "mismatch": Mean(float((logprobs - tree.sampled_logprobs).abs().sum()), count),
    }


def _not_finite(tree: PackedTree, logprobs: Tensor) -> str:
    suspects = {
        "trainer's logprobs": logprobs,
        "sampled_logprobs": tree.sampled_logprobs,
        "old_logprobs": tree.old_logprobs,
        "advantages": tree.advantages,
        "weights": tree.weights,
        "teacher_logprobs": tree.teacher_logprobs,
    }
    if tree.reference_logprobs is not None:
        suspects["reference_logprobs"] = tree.reference_logprobs
    names = [name for name, values in suspects.items() if not bool(values.isfinite().all())]
    return ", ".join(names) or "the loss alone"
