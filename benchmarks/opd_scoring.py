"""Claim: scoring by a teacher of the student's size costs at most 1.15 times one prefill of the same tokens.

    python -m benchmarks.opd_scoring [--model FOLDER] [--dtypes float32 bfloat16] [--rounds 5]

One group of rollouts behind a shared prompt (random tokens), by turns in one process, the order changing:

    score      turnpoint's teacher: log-probabilities of all sampled tokens, the prompt computed once
    prefill    the same engine on the same ids, as prompts: the network alone, the head at the last token
    peer       transformers, one row per rollout: logits of the sampled tokens, log-softmax, gather
    network    transformers, the same rows, the network alone

Processor seconds of all threads; the engine's cache is emptied before each turn. `head` is the share of the
multiplications of a pass with the head at every sampled token that are the head's: what scoring needs and a
prefill does not. Prints one JSON line per dtype: medians, and medians over rounds of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import emit, facts, folder_of, median_ratio, mistakes
from benchmarks.train_step import load, make_group
from turnpoint.engine import TorchEngine
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import GenerateRequest
from turnpoint.teachers.scoring import ScoringTeacher
from turnpoint.types import Floats, Group

DTYPES = ["float32", "bfloat16"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--completion-tokens", type=int, nargs=2, default=[48, 96], help="from, to")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with mistakes(parser):
        if min(given.rollouts, given.prompt_tokens, *given.completion_tokens, given.rounds) < 1:
            raise ValueError("sizes and rounds must be at least 1")
        model = folder_of(given.model)
    torch.set_num_threads(given.threads)
    group, _ = make_group(given)
    for dtype in given.dtypes:
        emit(**measure(group, model=model, dtype=dtype, rounds=given.rounds), **facts())


def measure(group: Group, *, model: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Returns medians and ratios of one dtype."""
    decoder = Decoder(load(model, dtype), vocab_size=load(model, dtype).config.vocab_size)
    peer = load(model, dtype)
    peer.set_attn_implementation("sdpa")
    engine = TorchEngine(decoder, decode=str, context_length=8192)
    prompt = len(group.tree.segments[0])
    tokens = sum(group.num_generated(member) for member in range(len(group.members)))
    with asyncio.Runner() as runner:
        ways: dict[str, Callable[[], list[Floats]]] = {
            "score": lambda: runner.run(scored(engine, group)),
            "prefill": lambda: runner.run(prefilled(engine, group)),
            "peer": lambda: rows(peer, group, prompt=prompt, head=True),
            "network": lambda: rows(peer, group, prompt=prompt, head=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        answers: dict[str, list[Floats]] = {}
        for number in range(rounds + 1):  # the first warms up
            for name in [*ways][:: 1 if number % 2 else -1]:
                engine.forget()
                began = time.process_time()
                answers[name] = ways[name]()
                if number:
                    seconds[name].append(time.process_time() - began)
        runner.run(engine.close())
    pairs = zip(answers["score"], answers["peer"], strict=True)
    apart = max(float(abs(mine - theirs).max()) for mine, theirs in pairs)
    layers = sum(weight.numel() for name, weight in peer.named_parameters() if "layers" in name)
    head = decoder.head.weight.numel() * tokens
    return {
        "benchmark": "opd_scoring",
        "dtype": dtype,
        "rollouts": len(group.members),
        "prompt_tokens": prompt,
        "sampled_tokens": tokens,
        "processor_seconds": {name: round(statistics.median(each), 3) for name, each in seconds.items()},
        "over_prefill": round(median_ratio(seconds["score"], seconds["prefill"]), 3),
        "over_peer": round(median_ratio(seconds["score"], seconds["peer"]), 3),
        "over_network": round(median_ratio(seconds["score"], seconds["network"]), 3),
        "peer_over_network": round(median_ratio(seconds["peer"], seconds["network"]), 3),
        "head": round(head / (head + layers * (tokens + prompt)), 3),
        "largest_difference": round(apart, 5),
    }


async def scored(engine: TorchEngine, group: Group) -> list[Floats]:
    """Returns what a teacher says about each member."""
    teacher = ScoringTeacher(name="teacher", engine=engine, coef=1.0, temperature=1.0)
    words = await asyncio.gather(*[teacher.targets(group, member) for member in range(len(group.members))])
    return [target.logprobs for word in words for target in word.values()]


async def prefilled(engine: TorchEngine, group: Group) -> list[Floats]:
    """Runs each member's ids through the network, and draws one token behind them."""
    ids = [group.tree.path_ids(member.leaf) for member in group.members]
    await asyncio.gather(
        *[
            engine.generate(GenerateRequest(id=str(index), prompt_ids=path, max_tokens=1))
            for index, path in enumerate(ids)
        ]
    )
    return []


@torch.inference_mode()
def rows(model: Any, group: Group, *, prompt: int, head: bool) -> list[Floats]:
    """Runs one row per member through transformers; with `head` returns its log-probabilities."""
    found: list[Floats] = []
    for member in group.members:
        ids = torch.tensor([group.tree.path_ids(member.leaf).tolist()])
        if not head:
            model.base_model(input_ids=ids, use_cache=False)
            continue
        kept = ids.shape[1] - prompt + 1
        logits = model(input_ids=ids, logits_to_keep=kept, use_cache=False).logits[0, :-1].float()
        found.append(torch.log_softmax(logits, dim=-1).gather(-1, ids[0, prompt:, None])[:, 0].numpy())
    return found


if __name__ == "__main__":
    main()
