"""What a packed row costs in seconds and in memory: measured on a few small rows, linear beyond them.

Seconds are fixed + a x tokens + b x attention scores: every row meets the same weights, every token passes
the same layers, and attention works for each score. Bytes are a x tokens + b x scores. Rows of short
sequences and rows of a single long one tell the parts apart.

Memory is what autograd saves, counted tensor by tensor, so that neither the allocator nor other
processes blur it; what a backward pass needs besides is added by `turnpoint.diagnosis.memory`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from turnpoint.diagnosis.rows import RowSize, Shape, pack_shape, size_of
from turnpoint.models.decoder import Decoder
from turnpoint.training.forward import tree_logprobs
from turnpoint.training.packing import PackedStep
from turnpoint.training.step import Trainer

_SHORT = 128  # tokens of a short sequence: one block of attention, as the small trees of a real row are
_SECONDS = 6.0  # that one measured row should take at most
_FEW, _MANY = 64, 2048  # tokens of a measured row
_OPTIMIZED = 1 << 22  # elements on which an update is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """A cost of packed rows."""

    fixed: float  # of every row
    per_token: float
    per_score: float

    def of(self, row: RowSize) -> float:
        """Returns what `row` costs."""
        return self.fixed + self.per_token * row.tokens + self.per_score * row.scores


def fit_bytes(short: tuple[RowSize, float], long: tuple[RowSize, float]) -> LinearCost:
    """Returns the cost without a fixed part that two exact measurements imply.

    >>> def of(tokens, scores):
    ...     return RowSize(tokens=tokens, scores=scores), 2.0 * tokens + 0.5 * scores
    >>> fit_bytes(of(100, 1000), of(120, 9000))
    LinearCost(fixed=0.0, per_token=2.0, per_score=0.5)
    """
    (a, bytes_a), (b, bytes_b) = short, long
    per_score = (a.tokens * bytes_b - b.tokens * bytes_a) / (a.tokens * b.scores - b.tokens * a.scores)
    return LinearCost(fixed=0.0, per_token=(bytes_a - per_score * a.scores) / a.tokens, per_score=per_score)


def fit_seconds(
    small: tuple[RowSize, float], short: tuple[RowSize, float], long: tuple[RowSize, float]
) -> LinearCost:
    """Returns the cost that three noisy measurements imply; no part of it is negative.

    `short` and `long` have about the same tokens. What rows that do not differ cannot tell is put on tokens.

    >>> def of(tokens, scores):
    ...     return RowSize(tokens=tokens, scores=scores), 8 + 2.0 * tokens + 0.5 * scores
    >>> fit_seconds(of(50, 500), of(100, 1000), of(100, 9000))
    LinearCost(fixed=8.0, per_token=2.0, per_score=0.5)
    """
    per_score = _slope(short[0].scores, short[1], long[0].scores, long[1])
    rest = [max(0.0, cost - per_score * size.scores) for size, cost in (small, short)]
    per_token = _slope(small[0].tokens, rest[0], short[0].tokens, rest[1]) or rest[1] / short[0].tokens
    fixed = max(0.0, rest[1] - per_token * short[0].tokens)
    return LinearCost(fixed=fixed, per_token=per_token, per_score=per_score)


def _slope(x: float, y: float, other_x: float, other_y: float) -> float:
    return max(0.0, (other_y - y) / (other_x - x)) if other_x > x else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """What forward and backward of a packed row take."""

    seconds: LinearCost
    saved_bytes: LinearCost  # kept from the forward for the backward pass
    tokens: int  # of the rows that were measured


def measure_training(
    trainer: Trainer,
    decoder: Decoder,
    *,
    most_tokens: int,
    context: int,
    trained: float,
    seconds: float = 2 * _SECONDS,
) -> TrainingCost:
    """Returns the cost of training `decoder`, from rows of at most `most_tokens` tokens; drops gradients.

    `trained`: the share of a row's tokens that were sampled; only those pass the output head. The two
    larger rows take about `seconds` together, as far as a small one can tell.
    """
    owned = {weight.untyped_storage().data_ptr() for weight in decoder.model.parameters()}

    def measured(tokens: int, length: int) -> tuple[RowSize, float, float]:
        sampled = min(length - 1, max(1, round(trained * length)))
        shape = Shape(prompts=tokens // length, samples=1, prompt_tokens=length - sampled, new_tokens=sampled)
        step = pack_shape(shape, max_tokens=tokens, vocab_size=decoder.vocab_size, device=decoder.device)
        seconds, saved = _measured(trainer, step, owned)
        return size_of(step.trees[0]), seconds, saved + _again(trainer, decoder, step, owned)

    few = min(_FEW, context // 2 * 2)
    try:
        one, _, one_saved = measured(few, few)  # also warms up
        two, two_seconds, two_saved = measured(few, few // 2)
        affordable = int(few * min(_SECONDS, seconds / 2) / two_seconds)
        tokens = min(affordable, _MANY, most_tokens) // _SHORT * _SHORT
        small = two, two_seconds
        short = measured(tokens, min(_SHORT, context))[:2] if tokens else small
        long = measured(min(tokens, context), min(tokens, context))[:2] if tokens else small
    finally:
        trainer.zero_grad()
    return TrainingCost(
        seconds=fit_seconds(small, short, long),
        saved_bytes=fit_bytes((two, two_saved), (one, one_saved)),
        tokens=tokens or few,
    )


def _measured(trainer: Trainer, step: PackedStep, owned: Container[int]) -> tuple[float, int]:
    """Returns the seconds of forward and backward, and the bytes that autograd saved in between.

    `owned`: where weights lie; autograd refers to them, and they are there anyway.
    """
    began = time.perf_counter()
    saved = _saved_by(lambda: trainer.forward_backward(step), owned)
    _synchronize(step)
    return time.perf_counter() - began, saved


def _again(trainer: Trainer, decoder: Decoder, step: PackedStep, owned: Container[int]) -> float:
    """Returns the bytes of one layer, which exist when backward computes it again; 0 if it does not."""
    if not trainer.recomputed:
        return 0.0
    tree = step.trees[0]
    plain = _saved_by(lambda: tree_logprobs(decoder, tree, temperature=1.0, chunk=len(tree.targets)), owned)
    return plain / len(trainer.recomputed)


def _saved_by(work: Callable[[], object], owned: Container[int]) -> int:
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, _same):
        work()
    return sum(saved.values())


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _synchronize(step: PackedStep) -> None:
    if step.trees[0].token_ids.is_cuda:
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object]) -> float:
    """Returns how long `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def optimizer_seconds(elements: int, device: torch.device) -> float:
    """Returns about what AdamW takes for `elements` float32 weights, timed on some that are nobody's."""
    some = min(elements, _OPTIMIZED)
    weight = torch.zeros(some, device=device, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    adamw = torch.optim.AdamW([weight], fused=True)
    step = cast(Callable[[], object], adamw.step)
    step()  # makes its moments
    return seconds_of(step) * elements / some
