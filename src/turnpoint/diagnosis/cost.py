"""What a packed row costs in seconds and in memory: measured on two small rows, linear in between and beyond.

Both costs of a row are a x tokens + b x attention scores: every token passes the same layers, and what is
kept for the backward pass grows with tokens (hidden states) and with scores (probabilities). Two rows of the
same tokens, one of many short sequences and one of a single long one, tell a and b apart.

Memory is what autograd saves, counted tensor by tensor, so that neither the allocator nor other
processes blur it; what a backward pass needs besides is added by `overhead_bytes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from turnpoint.diagnosis.rows import RowSize, Shape, pack_shape, size_of
from turnpoint.training.packing import PackedStep
from turnpoint.training.step import Trainer

_SHORT = 128  # tokens of a short sequence: one block of attention, as the small trees of a real row are
_SECONDS = 4.0  # that one measured row should take
_FEWEST, _MOST = 64, 2048  # tokens of a measured row
_OPTIMIZED = 1 << 22  # elements on which an update is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """A cost of packed rows."""

    per_token: float
    per_score: float

    def of(self, row: RowSize) -> float:
        """Returns what `row` costs."""
        return self.per_token * row.tokens + self.per_score * row.scores


def fit(short: tuple[RowSize, float], long: tuple[RowSize, float]) -> LinearCost:
    """Returns the cost that two measurements imply; noise never makes a part of it negative.

    >>> of = lambda tokens, scores: (RowSize(tokens=tokens, scores=scores), 2.0 * tokens + 0.5 * scores)
    >>> fit(of(100, 1000), of(100, 9000))
    LinearCost(per_token=2.0, per_score=0.5)
    """
    (a, cost_a), (b, cost_b) = short, long
    determinant = a.tokens * b.scores - b.tokens * a.scores
    per_score = max(0.0, (a.tokens * cost_b - b.tokens * cost_a) / determinant) if determinant else 0.0
    return LinearCost(per_token=max(0.0, (cost_a - per_score * a.scores) / a.tokens), per_score=per_score)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """What forward and backward of a packed row take."""

    seconds: LinearCost
    saved_bytes: LinearCost  # kept from the forward for the backward pass
    tokens: int  # of the rows that were measured


def measure_training(
    trainer: Trainer, *, most_tokens: int, context: int, trained: float, vocab_size: int, device: torch.device
) -> TrainingCost:
    """Returns the cost of training, from rows of at most `most_tokens` tokens; gradients are dropped.

    `trained`: the share of a row's tokens that were sampled; only those pass the output head. A row takes
    a few seconds, as far as a small one can tell.
    """

    def row(tokens: int, length: int) -> PackedStep:
        length = min(length, tokens, context)
        sampled = min(length - 1, max(1, round(trained * length)))
        shape = Shape(prompts=tokens // length, samples=1, prompt_tokens=length - sampled, new_tokens=sampled)
        return pack_shape(shape, max_tokens=tokens, vocab_size=vocab_size, device=device)

    try:
        first, _ = [_measured(trainer, row(_FEWEST, _SHORT)) for _ in range(2)][-1]  # the first one warms up
        tokens = int(_FEWEST * _SECONDS / first)
        tokens = max(_FEWEST, min(tokens, _MOST, most_tokens))
        rows = [row(tokens, _SHORT), row(tokens, tokens)]
        found = [(size_of(step.trees[0]), *_measured(trainer, step)) for step in rows]
    finally:
        trainer.zero_grad()
    short, long = found
    return TrainingCost(
        seconds=fit((short[0], short[1]), (long[0], long[1])),
        saved_bytes=fit((short[0], short[2]), (long[0], long[2])),
        tokens=tokens,
    )


def _measured(trainer: Trainer, step: PackedStep) -> tuple[float, int]:
    """Returns the seconds of forward and backward, and the bytes that autograd saved in between."""
    owned = {weight.untyped_storage().data_ptr() for weight in trainer.publish().values()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    began = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(pack, _same):
        trainer.forward_backward(step)
    _synchronize(step)
    return time.perf_counter() - began, sum(saved.values())


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _synchronize(step: PackedStep) -> None:
    if step.trees[0].token_ids.is_cuda:
        torch.cuda.synchronize()


def overhead_bytes(*, head_chunk: int, vocab_size: int, hidden_dim: int, itemsize: int) -> int:
    """Returns what a backward pass holds besides saved tensors and gradients, roughly, in bytes.

    Four float32 arrays of one chunk's logits, and three of the output head's gradient: of the chunk, summed
    over chunks, and of a tied embedding.
    """
    return 4 * 4 * head_chunk * vocab_size + 3 * itemsize * vocab_size * hidden_dim


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
    adamw.step()  # makes its moments
    return seconds_of(adamw.step) * elements / some
