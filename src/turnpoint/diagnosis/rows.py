"""Packed rows of any shape, made of random tokens: what a micro-batch costs before there is a real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from turnpoint.training.layout import DENSE_TOKENS, TreeLayout
from turnpoint.training.packing import PackedStep, pack_step
from turnpoint.training.row import PackedTree
from turnpoint.types import (
    Author,
    FinishReason,
    Group,
    Member,
    Message,
    SegmentCredit,
    Task,
    TreeBuilder,
    Verdict,
)

_TASK = Task(id="row", messages=(Message(role="user", content=""),), answer="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A step as it is packed: prompts, rollouts of each, and their lengths in tokens."""

    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSize:
    """What the cost of a packed row depends on."""

    tokens: int  # through the network
    scores: int  # of attention, for each query head and layer


def size_of(row: PackedTree) -> RowSize:
    """Returns the size of a packed row."""
    return RowSize(tokens=len(row.token_ids), scores=TreeLayout(row.runs).scores)


def pack_shape(
    shape: Shape, *, max_tokens: int, vocab_size: int, device: torch.device | str = "cpu"
) -> PackedStep:
    """Returns a step of `shape`, all of whose tokens train, with ids drawn from `vocab_size`."""
    draw = np.random.default_rng(0)
    items = [
        (group, all_credits(group))
        for index in range(shape.prompts)
        for group in [_group(shape, f"row/{index}", draw, vocab_size)]
    ]
    return pack_step(
        items, max_tokens=max_tokens, aggregation="token", max_new_tokens=shape.new_tokens, device=device
    )


def all_credits(group: Group) -> list[SegmentCredit]:
    """Returns credits under which every sampled token trains."""
    sampled = [segment for segment in group.tree.segments if segment.author is Author.POLICY]
    return [
        SegmentCredit(segment=segment.id, weights=ones, advantages=ones)
        for segment in sampled
        for ones in [np.ones(len(segment), dtype=np.float32)]
    ]


def rows_of_step(shape: Shape, *, max_tokens: int) -> tuple[RowSize, float]:
    """Returns the largest row that a step of `shape` is packed into, and how many such rows it makes.

    Nothing is laid out, so a large step costs no more than a small one.
    """
    group_tokens = shape.prompt_tokens + shape.samples * shape.new_tokens
    if group_tokens <= max_tokens:
        groups, samples = min(shape.prompts, max_tokens // group_tokens), shape.samples
    else:
        fitting = (max_tokens - shape.prompt_tokens) // shape.new_tokens
        groups, samples = 1, max(1, min(shape.samples, fitting))
    tree = _tree(shape.prompt_tokens, samples, shape.new_tokens - 1)
    row = RowSize(tokens=groups * tree.tokens, scores=groups * tree.scores)
    return row, shape.prompts * shape.samples / (groups * samples)


def _tree(prompt: int, samples: int, inputs: int) -> RowSize:
    """One prompt and its rollouts of `inputs` tokens each, as `TreeLayout` computes them.

    The last token of a rollout is predicted and no input.
    """
    tokens = prompt + samples * inputs
    along_paths = prompt**2 + samples * inputs * (prompt + inputs)
    return RowSize(tokens=tokens, scores=tokens**2 if tokens <= DENSE_TOKENS else along_paths)


def _group(shape: Shape, name: str, draw: np.random.Generator, vocab_size: int) -> Group:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=draw.integers(vocab_size, size=shape.prompt_tokens))
    leaves = [
        tree.append(
            parent=prompt,
            author=Author.POLICY,
            token_ids=draw.integers(vocab_size, size=shape.new_tokens),
            logprobs=np.full(shape.new_tokens, -1.0),
            policy_version=0,
        )
        for _ in range(shape.samples)
    ]
    return Group(id=name, task=_TASK, tree=tree.freeze(), members=_members(leaves))


def _members(leaves: Sequence[int]) -> tuple[Member, ...]:
    return tuple(
        Member(leaf=leaf, segments=(leaf,), text="", verdict=Verdict.scored(0.0), finish=FinishReason.STOP)
        for leaf in leaves
    )
