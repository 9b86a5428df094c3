"""Forward and backward of one group: ours, packed as a tree, against padded rows through transformers.

    python -m benchmarks.train_step [--model FOLDER]

Both compute the same clipped loss of the same group (random tokens, a shared prompt) on the same weights,
by turns in one process; `cpu_ratio` is of processor time, which other work on the machine disturbs less
than wall-clock time. The peer runs transformers' model with its own sdpa attention on one padded batch
and keeps logits of completion tokens only. Prints JSON lines: one per dtype with medians and the ratio,
one with what backward keeps of the head for two vocabulary sizes.
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
import transformers
from torch import Tensor, nn

from benchmarks.common import emit, facts, folder_of
from turnpoint.losses.policy_gradient import policy_gradient_loss
from turnpoint.models.decoder import Decoder
from turnpoint.models.logprobs import chunked_logprobs
from turnpoint.training import PackedStep, Trainer, pack_step
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
    float_array,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--completion-tokens", type=int, nargs=2, default=[64, 128], help="from, to")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for dtype in arguments.dtypes:
        emit(**compare(arguments, dtype), **facts())
    emit(**head_memory(), **facts())


def compare(arguments: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Returns times, ratio, and how far the gradients of the two ways are apart."""
    group, credits = make_group(arguments)
    measured = measure(group, credits, model=arguments.model, dtype=dtype, repeats=arguments.repeats)
    return {"benchmark": "train_step", "dtype": dtype, "rollouts": arguments.rollouts, **measured}


def measure(
    group: Group, credits: list[SegmentCredit], *, model: str, dtype: str, repeats: int
) -> dict[str, Any]:
    """Runs forward and backward of `group` as a packed tree and as padded rows, by turns."""
    step = pack_step([(group, credits)], max_tokens=10**6, aggregation="token", max_new_tokens=10**6)
    folder = folder_of(model)
    ours, peer = load(folder, dtype), load(folder, dtype)
    peer.set_attn_implementation("sdpa")
    trainer = Trainer(Decoder(ours, vocab_size=ours.config.vocab_size), learning_rate=1e-6)
    ways: dict[str, Callable[[], float]] = {
        "tree": lambda: trainer.forward_backward(step)["loss"].value or 0.0,
        "padded_rows": lambda: padded_rows(peer, group, credits, step),
    }
    losses: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):  # the first warms up
        trainer.zero_grad()
        peer.zero_grad()
        for name, way in ways.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            losses[name] = way()
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(time.process_time() - cpu_start)
    tree = dict(trainer.gradients())
    rows = {name: weight.grad.float() for name, weight in peer.named_parameters()}
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    cpu_medians = {name: statistics.median(times[1:]) for name, times in cpu_seconds.items()}
    return {
        "trained_tokens": step.trained_tokens,
        "tokens": {"tree": step.packed_tokens, "padded_rows": padded_tokens(group)},
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "all_seconds": {name: [round(value, 2) for value in times] for name, times in seconds.items()},
        "all_cpu_seconds": {
            name: [round(value, 2) for value in times] for name, times in cpu_seconds.items()
        },
        "ratio": round(medians["padded_rows"] / medians["tree"], 2),
        "cpu_ratio": round(cpu_medians["padded_rows"] / cpu_medians["tree"], 2),
        "losses": losses,
        "gradient_difference": distance(tree, rows),
        "largest_gradient_difference": largest(tree, rows),
    }


def make_group(arguments: argparse.Namespace) -> tuple[Group, list[SegmentCredit]]:
    """Returns one group of random tokens with random advantages."""
    rng = np.random.default_rng(0)
    tree = TreeBuilder()
    prompt_tokens: int = arguments.prompt_tokens
    prompt = tree.append(author=Author.PROMPT, token_ids=rng.integers(10, 49_000, prompt_tokens))
    shortest, longest = (float(end) for end in arguments.completion_tokens)
    lengths: list[int] = np.linspace(shortest, longest, int(arguments.rollouts)).astype(int).tolist()
    credits: list[SegmentCredit] = []
    for length in lengths:
        segment = tree.append(
            parent=prompt,
            author=Author.POLICY,
            token_ids=rng.integers(10, 49_000, length),
            logprobs=np.full(length, -14.0),  # near what the model gives to random tokens
            policy_version=0,
        )
        credits.append(
            SegmentCredit(
                segment=segment,
                weights=float_array(np.ones(length)),
                advantages=float_array(np.full(length, rng.normal())),
            )
        )
    members = [
        Member(
            leaf=credit.segment,
            segments=(credit.segment,),
            text="",
            verdict=Verdict.scored(0.0),
            finish=FinishReason.STOP,
        )
        for credit in credits
    ]
    task = Task(id="random", messages=(Message(role="user", content=""),), answer="")
    return Group(id="random", task=task, tree=tree.freeze(), members=tuple(members)), credits


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


def head_memory() -> dict[str, Any]:
    """Returns the bytes that backward keeps of the head for 512 tokens and two vocabulary sizes."""
    kept = {
        name: {vocab: saved_bytes(vocab, chunked=name == "chunked") for vocab in (8_192, 49_152)}
        for name in ("chunked", "plain")
    }
    return {"benchmark": "head_memory", "trained_tokens": 512, "saved_bytes_by_vocabulary": kept}


def saved_bytes(vocab: int, *, chunked: bool) -> int:
    """Returns the bytes of distinct tensors saved for backward, weights of the head not counted."""
    head = nn.Linear(576, vocab, bias=False)
    hidden, targets = torch.randn(512, 576, requires_grad=True), torch.randint(0, vocab, (512,))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if chunked:
            logprobs, _ = chunked_logprobs(head, hidden=hidden, targets=targets, temperature=1.0, chunk=128)
        else:
            laws = torch.log_softmax(head(hidden), dim=-1)
            logprobs = laws.gather(-1, targets[:, None]).squeeze(-1)
    kept.pop(head.weight.untyped_storage().data_ptr(), None)
    logprobs.sum().backward()
    return sum(kept.values())


def load(folder: str, dtype: str) -> Any:
    """Returns the model in `dtype`, from a local folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), local_files_only=True
    ).eval()


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Returns |left - right| / |right|."""
    squares = sum(float((left[name] - right[name]).square().sum()) for name in right)
    return (squares / sum(float(grad.square().sum()) for grad in right.values())) ** 0.5


def padded_tokens(group: Group) -> int:
    """Returns the size of the padded batch."""
    return len(group.members) * max(len(group.tree.path_ids(member.leaf)) for member in group.members)


if __name__ == "__main__":
    main()
