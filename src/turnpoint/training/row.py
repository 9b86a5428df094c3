"""Lays trees out in one flat row: where each segment lies, what trains, and from which hidden state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from turnpoint.training.layout import Run
from turnpoint.training.selection import TrainedRollout, TrainedSegment, kept_lengths
from turnpoint.types import Floats, TokenTree

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedTree:
    """One micro-batch: T tokens of one or more trees in a flat row, and N tokens that they predict.

    A prompt (5, 6) with the sampled tokens (7, 2) and (9,) packs as token_ids [5, 6, 7], positions
    [0, 1, 2], predictors [1, 2, 1] and targets [7, 2, 9]: what nothing follows is no input. Every one of
    the N trains; tokens that do not are not here, so there is no mask.
    """

    token_ids: Int[Tensor, " T"]
    positions: Int[Tensor, " T"]  # depth along the path
    runs: tuple[Run, ...]  # cover the row, for `TreeLayout`
    predictors: Int[Tensor, " N"]  # place in the row of the token before the target on its path
    targets: Int[Tensor, " N"]
    sampled_logprobs: Float[Tensor, " N"]  # nats, of the law sampled from, by the engine
    old_logprobs: Float[Tensor, " N"]  # nats, what ratios are against: the engine's, or the trainer's own
    advantages: Float[Tensor, " N"]  # of the task; 0 where that stream does not apply
    weights: Float[Tensor, " N"]  # the credit's weight times the rollout's factor in the reduction
    sequence_ids: Int[Tensor, " N"]  # one per rollout, unique over the step
    teacher_logprobs: Float[Tensor, " N"]  # nats; 0 where there is no teacher
    teacher_coef: Float[Tensor, " N"]  # 0 where there is no teacher
    reference_logprobs: Float[Tensor, " N"] | None = None  # nats; None: no reference was asked
    teacher: str = ""  # whose whole law is asked at these tokens; empty where none is


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """What one rollout brings into a step."""

    rollout: TrainedRollout
    sequence_id: int
    factor: float  # of all its weights


def pack_row(
    subtrees: Sequence[Sequence[Share]], *, device: torch.device | str, teacher: str = ""
) -> PackedTree:
    """Returns one row of the given trees, each as the rollouts of it that train here.

    Raises ValueError for a trained token that nothing comes before.
    """
    inputs: list[tuple[Array, Array]] = []
    columns: list[Mapping[str, Array]] = []
    runs: list[Run] = []
    for shares in subtrees:
        tree = shares[0].rollout.tree
        placed = _place(tree, [share.rollout for share in shares], start=runs[-1].stop if runs else 0)
        for segment, run in placed.items():
            if len(run):
                runs.append(run)
                depths = np.arange(run.depth, run.depth + len(run))
                inputs.append((tree.segments[segment].token_ids[: len(run)], depths))
        columns += [
            _columns(share, part, placed[part.credit.segment])
            for share in shares
            for part in share.rollout.segments
        ]
    token_ids, positions = (np.concatenate(parts) for parts in zip(*inputs, strict=True))
    trained = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    tensors = {"token_ids": token_ids, "positions": positions, **trained}
    return PackedTree(
        runs=tuple(runs),
        teacher=teacher,
        **{name: _tensor(array).to(device) for name, array in tensors.items()},
    )


def _place(tree: TokenTree, rollouts: Sequence[TrainedRollout], *, start: int) -> dict[int, Run]:
    """Returns where each needed segment lies, from `start` on; a run may be empty."""
    placed: dict[int, Run] = {}
    for segment, kept in sorted(kept_lengths(tree, rollouts).items()):
        before = tree.path(segment)[:-1]
        spans = [(placed[it.segment.id].start, it.length) for it in before if it.length]
        placed[segment] = Run(
            start=start,
            stop=start + kept,
            ancestors=tuple((first, first + length) for first, length in spans),
        )
        start += kept
    return placed


def _columns(share: Share, part: TrainedSegment, run: Run) -> Mapping[str, Array]:
    """Returns the [n] columns of `PackedTree` for the trained tokens of one segment."""
    credit, offsets = part.credit, part.offsets
    segment = share.rollout.tree.segments[credit.segment]
    if not run.ancestors and offsets[0] == 0:
        raise ValueError(f"segment {segment.id}: nothing comes before its first token to predict it from")
    predictors = run.start + offsets - 1
    if offsets[0] == 0:
        predictors[0] = run.ancestors[-1][1] - 1
    nothing = np.zeros(len(segment), dtype=np.float32)
    teacher = credit.teacher
    streams: dict[str, Array] = {
        "targets": segment.token_ids,
        "sampled_logprobs": cast(Floats, segment.logprobs),
        "old_logprobs": cast(Floats, segment.logprobs),
        "advantages": nothing if credit.advantages is None else credit.advantages,
        "weights": credit.weights * np.float32(share.factor),
        "teacher_logprobs": nothing if teacher is None else teacher.logprobs,
        "teacher_coef": nothing if teacher is None else nothing + np.float32(teacher.coef),
        "sequence_ids": np.full(len(segment), share.sequence_id),
    }
    return {"predictors": predictors, **{name: stream[offsets] for name, stream in streams.items()}}


def _tensor(array: Array) -> Tensor:
    wide = np.int64 if np.issubdtype(array.dtype, np.integer) else np.float32
    return torch.from_numpy(array.astype(wide))
