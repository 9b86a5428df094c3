"""Forward and backward of one group that forks: ours, packed as a tree, against padded rows.

    python -m benchmarks.train_branched [--model FOLDER] [--depth 0.6]

The group is HDL's (arXiv 2609.36864): 2 roots, 4 + 3 continuations of each, random tokens, all answers of one
length, forks at `--depth` of a root. Both ways compute the same clipped loss on the same weights, by turns in
one process: the tree holds every token once; as rows, every member carries its whole path and its loss counts
the tokens that it sampled itself. The peer runs transformers' model with its own sdpa attention on one padded
batch and keeps logits behind the prompt only. Prints one JSON line per dtype: median seconds by the clock and
of the processor, their ratios, and how far the gradients are apart: |ours - rows| / |rows|, over all weights
and for the weight where it is largest.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import torch

from benchmarks.common import emit, facts
from benchmarks.train_step import measure
from turnpoint.types import (
    Author,
    BranchOrigin,
    FinishReason,
    Group,
    Member,
    Message,
    SegmentCredit,
    Task,
    TreeBuilder,
    Verdict,
    float_array,
)

ROOTS, CONTINUATIONS = 2, (4, 3)
APART = 16  # tokens between the two points of a root


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--answer-tokens", type=int, default=256)
    parser.add_argument("--depth", type=float, default=0.6, help="mean of a root's two points")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for dtype in options.dtypes:
        emit(**compare(options, dtype), **facts())


def compare(options: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Returns times, ratios and differences."""
    group, credits = make_group(options)
    return {
        "benchmark": "train_branched",
        "model": options.model,
        "dtype": dtype,
        "prompt_tokens": options.prompt_tokens,
        "answer_tokens": options.answer_tokens,
        "depth": options.depth,
        "members": len(group.members),
        **measure(group, credits, model=options.model, dtype=dtype, repeats=options.repeats),
    }


def make_group(options: argparse.Namespace) -> tuple[Group, list[SegmentCredit]]:
    """Returns a group that forks and an advantage of its own for every member."""
    rng = np.random.default_rng(0)
    prompt_tokens: int = options.prompt_tokens
    answer_tokens: int = options.answer_tokens
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=rng.integers(10, 49_000, prompt_tokens))
    members: list[Member] = []

    def add(parent: int, kept: int, origin: BranchOrigin | None = None) -> int:
        length = answer_tokens - kept
        leaf = tree.append(
            parent=parent,
            parent_length=kept if origin else None,
            author=Author.POLICY,
            token_ids=rng.integers(10, 49_000, length),
            logprobs=np.full(length, -14.0),  # near what the model gives to random tokens
            policy_version=0,
        )
        fields: dict[str, Any] = {"origin": origin} if origin else {}
        judged = Verdict.scored(float(rng.random() < 0.5))
        stop = FinishReason.LENGTH
        members.append(Member(leaf=leaf, segments=(leaf,), text="", verdict=judged, finish=stop, **fields))
        return leaf

    roots = [add(prompt, 0) for _ in range(ROOTS)]
    middle = round(options.depth * answer_tokens)
    for root, segment in enumerate(roots):
        for count, at in zip(CONTINUATIONS, (middle - APART // 2, middle + APART // 2), strict=True):
            for _ in range(count):
                add(segment, at, BranchOrigin(root=root, position=at, rule="depth", score=0.0))
    frozen = tree.freeze()
    credits = [
        SegmentCredit(
            segment=member.leaf,
            weights=float_array(np.ones(len(frozen.segments[member.leaf]))),
            advantages=float_array(np.full(len(frozen.segments[member.leaf]), rng.normal())),
        )
        for member in members
    ]
    task = Task(id="random", messages=(Message(role="user", content=""),), answer="")
    return Group(id="random", task=task, tree=frozen, members=tuple(members)), credits


if __name__ == "__main__":
    main()
