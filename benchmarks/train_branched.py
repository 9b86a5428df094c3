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
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import emit, facts, folder_of
from benchmarks.train_step import distance, load, padded_tokens
from turnpoint.losses.policy_gradient import policy_gradient_loss
from turnpoint.models.decoder import Decoder
from turnpoint.training import PackedStep, Trainer, pack_step
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
    step = pack_step([(group, credits)], max_tokens=10**6, aggregation="token", max_new_tokens=10**6)
    folder = folder_of(options.model)
    ours, peer = load(folder, dtype), load(folder, dtype)
    peer.set_attn_implementation("sdpa")
    trainer = Trainer(Decoder(ours, vocab_size=ours.config.vocab_size), learning_rate=1e-6)
    ways: dict[str, Callable[[], float]] = {
        "tree": lambda: trainer.forward_backward(step)["loss"].value or 0.0,
        "padded_rows": lambda: padded_rows(peer, group, credits, step),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    losses: dict[str, float] = {}
    grads: dict[str, dict[str, Tensor]] = {}
    for _ in range(options.repeats + 1):  # the first warms up
        trainer.zero_grad()
        peer.zero_grad()
        for name, way in ways.items():
            began, processor = time.perf_counter(), time.process_time()
            losses[name] = way()
            times[name].append((time.perf_counter() - began, time.process_time() - processor))
    grads = {
        "tree": dict(trainer.gradients()),
        "padded_rows": {name: weight.grad.float() for name, weight in peer.named_parameters()},
    }
    clock, processor = (
        {name: statistics.median(pair[kind] for pair in pairs[1:]) for name, pairs in times.items()}
        for kind in (0, 1)
    )
    return {
        "benchmark": "train_branched",
        "model": options.model,
        "dtype": dtype,
        "prompt_tokens": options.prompt_tokens,
        "answer_tokens": options.answer_tokens,
        "depth": options.depth,
        "members": len(group.members),
        "trained_tokens": step.trained_tokens,
        "tokens": {"tree": step.packed_tokens, "padded_rows": padded_tokens(group)},
        "seconds": {name: round(value, 3) for name, value in clock.items()},
        "processor_seconds": {name: round(value, 3) for name, value in processor.items()},
        "ratio": round(clock["padded_rows"] / clock["tree"], 2),
        "processor_ratio": round(processor["padded_rows"] / processor["tree"], 2),
        "losses": losses,
        "gradient_difference": distance(grads["tree"], grads["padded_rows"]),
        "largest_gradient_difference": largest(grads["tree"], grads["padded_rows"]),
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


def padded_rows(model: Any, group: Group, credits: list[SegmentCredit], step: PackedStep) -> float:
    """Runs forward and backward of the same loss on one row per member; returns the loss."""
    prompt = len(group.tree.segments[0])
    rows = [torch.tensor(group.tree.path_ids(member.leaf).tolist()) for member in group.members]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    present = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    output = model(
        input_ids=ids,
        attention_mask=present.long(),
        logits_to_keep=ids.shape[1] - prompt + 1,
        use_cache=False,
    )
    laws = torch.log_softmax(output.logits[:, :-1].float(), dim=-1)
    logprobs = laws.gather(-1, ids[:, prompt:, None]).squeeze(-1)
    own = torch.zeros(logprobs.shape, dtype=torch.bool)
    old, advantages = torch.zeros(logprobs.shape), torch.zeros(logprobs.shape)
    for row, (path, credit) in enumerate(zip(rows, credits, strict=True)):
        segment = group.tree.segments[credit.segment]
        assert segment.logprobs is not None
        sampled = slice(len(path) - len(segment) - prompt, len(path) - prompt)
        own[row, sampled] = True
        old[row, sampled] = torch.tensor(segment.logprobs)
        advantages[row, sampled] = torch.tensor(credit.advantages)
    loss, _ = policy_gradient_loss(
        logprobs=logprobs, old_logprobs=old, advantages=advantages, mask=own, denominator=step.denominator
    )
    loss.backward()
    return float(loss.detach())


def largest(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Returns the largest |left - right| / |right| of any weight."""
    squares = {name: float(grad.square().sum()) for name, grad in right.items()}
    return max(float((left[name] - right[name]).square().sum() / it) for name, it in squares.items()) ** 0.5


if __name__ == "__main__":
    main()
