"""A step of training, timed on rows of its own shape: as many of its groups as time allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from turnpoint.diagnosis.cost import TrainingCost, measure_training, optimizer_seconds, seconds_of
from turnpoint.diagnosis.rows import RowSize, Shape, pack_shape, rows_of_step
from turnpoint.models.decoder import Decoder
from turnpoint.speed.ceilings import synchronize
from turnpoint.speed.products import Pass, Products, passes_of
from turnpoint.training.packing import PackedStep
from turnpoint.training.step import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What a round trains on."""

    trainer: Trainer
    decoder: Decoder
    step: PackedStep
    whole_tokens: int  # of the step that was asked for
    trained: int  # weights

    @property
    def tokens(self) -> int:
        """Tokens through the network in a round: prompts once, and what was sampled."""
        return sum(len(tree.token_ids) for tree in self.step.trees)

    def seconds(self) -> float:
        """Runs forward and backward; returns its seconds with the part of an update that belongs to them."""
        device = self.decoder.device

        def work() -> None:
            self.trainer.forward_backward(self.step)
            synchronize(device)

        try:
            took = seconds_of(work)
        finally:
            self.trainer.zero_grad()
        update = optimizer_seconds(self.trained, device)
        return took + update * self.tokens / self.whole_tokens

    def passes(self, products: Products, head_chunk_tokens: int) -> list[Pass]:
        """Returns the matrix products of a round."""
        sampled = sum(len(tree.targets) for tree in self.step.trees)
        rows = max(len(tree.token_ids) for tree in self.step.trees)
        again = bool(self.trainer.recomputed)
        return [
            *passes_of(products.layers, self.tokens, at_once=rows, backward=True, recomputed=again),
            *passes_of(products.head, sampled, at_once=head_chunk_tokens, backward=True, recomputed=True),
        ]


def row_cost(trainer: Trainer, decoder: Decoder, shape: Shape, *, context: int) -> TrainingCost:
    """Returns what rows cost, from a few small ones; also warms up."""
    new = shape.samples * shape.new_tokens
    share = new / (shape.prompt_tokens + new)
    return measure_training(
        trainer, decoder, most_tokens=context, context=context, trained=share, seconds=0.0
    )


def afforded(shape: Shape, cost: TrainingCost, *, row_tokens: int, seconds: float) -> Shape:
    """Returns as much of the step as `seconds` allow: fewer groups, else fewer rollouts of one."""
    row, rows = rows_of_step(shape, max_tokens=row_tokens)
    share = seconds / (rows * cost.seconds.of(row))
    if share >= 1:
        return shape
    if share * shape.prompts >= 1:
        return replace(shape, prompts=int(share * shape.prompts))
    return replace(shape, prompts=1, samples=max(1, int(share * shape.prompts * shape.samples)))


def learning_of(
    trainer: Trainer, decoder: Decoder, *, asked: Shape, measured: Shape, row_tokens: int, trained: int
) -> Learning:
    """Returns a round's work: rows of at most `row_tokens` tokens."""
    step = pack_shape(measured, max_tokens=row_tokens, vocab_size=decoder.vocab_size, device=decoder.device)
    row, rows = rows_of_step(asked, max_tokens=row_tokens)
    return Learning(
        trainer=trainer, decoder=decoder, step=step, whole_tokens=_tokens(row, rows), trained=trained
    )


def _tokens(row: RowSize, rows: float) -> int:
    return round(row.tokens * rows)
