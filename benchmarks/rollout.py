"""Rollouts per second: our engine against transformers' `generate` and its continuous batching.

    python -m benchmarks.rollout [--model FOLDER] [--work groups single decode] [--rounds 2]

Every round gives the same new prompts to each arm, one after the other, so that a busy machine hits all of
them; every completion has the same fixed length. Prints for each work one JSON line per arm, one for what
the machine allows, measured between the rounds, and one per peer with ratios of medians, by the clock and by
processor time of all processes. All arms sample from the whole law at temperature 1; only ours returns
log-probabilities. A first round of a few tokens warms up and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers

from benchmarks.common import emit, facts, folder_of
from benchmarks.peer import processor_seconds
from benchmarks.turns import OURS, Arm, Work, ceiling, measure, report
from turnpoint.engine import TorchEngine
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import GenerateRequest
from turnpoint.types import TokenIds

# prompts, samples of each, tokens of a prompt, new tokens
WORK = {
    "small": (8, 8, 64, 64),
    "decode": (8, 16, 32, 64),  # short contexts, where matrix products are nearly all there is to do
    "groups": (8, 16, 256, 256),  # a step of GRPO
    "wave": (4, 14, 512, 128),  # the suffixes of a wave of hindsight forks, behind what they share
    "single": (1, 1, 64, 128),
}

_WARM = 8  # new tokens of the first round

Sampler: TypeAlias = Callable[[int, list[TokenIds], int], int]  # round, prompts, new tokens -> tokens sampled


def load(path: str) -> Any:
    """Returns the model in bfloat16."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def ours(path: str, samples: int, *, workers: int = 1) -> Sampler:
    """Returns the arm of `TorchEngine` with so many processes."""
    decoder = Decoder(model := load(path), vocab_size=model.config.vocab_size)
    engine = TorchEngine(decoder, decode=str, context_length=2048, workers=workers)  # nobody reads its text

    async def serve(number: int, prompts: list[TokenIds], new_tokens: int) -> int:
        requests = [
            GenerateRequest(id=f"{number}/{row}/{sample}", prompt_ids=prompt, max_tokens=new_tokens)
            for row, prompt in enumerate(prompts)
            for sample in range(samples)
        ]
        completions = await asyncio.gather(*[engine.generate(request) for request in requests])
        return sum(len(completion.token_ids) for completion in completions)

    return lambda number, prompts, new_tokens: asyncio.run(serve(number, prompts, new_tokens))


def generate(path: str, samples: int) -> Sampler:
    """Returns the arm of transformers' `generate`."""
    model = load(path)
    model.generation_config.eos_token_id = None

    def run(number: int, prompts: list[TokenIds], new_tokens: int) -> int:
        ids = torch.from_numpy(np.stack(prompts).astype(np.int64))
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                num_return_sequences=samples,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return output[:, ids.shape[1] :].numel()

    return run


def generate_batch(path: str, samples: int) -> Sampler:
    """Returns the arm of transformers' continuous batching."""
    model = load(path)
    batching = transformers.ContinuousBatchingConfig(max_batch_tokens=2048, num_blocks=128)

    def run(number: int, prompts: list[TokenIds], new_tokens: int) -> int:
        inputs = [prompt.tolist() for prompt in prompts for _ in range(samples)]
        config = transformers.GenerationConfig(
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=new_tokens,
            eos_token_id=-1,
            pad_token_id=0,
        )
        outputs = model.generate_batch(
            inputs=inputs,
            generation_config=config,
            continuous_batching_config=batching,
            persistent_manager=True,
            warmup=False,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return run


def turn_of(sampler: Sampler, work: Work) -> Arm:
    """Returns `sampler` as an arm, timed from outside; all of them are in this process and below it."""

    def sample(number: int, prompts: list[TokenIds], new_tokens: int) -> float:
        began = time.perf_counter()
        sampled = sampler(number, prompts, new_tokens)
        seconds = time.perf_counter() - began
        if sampled != (expected := work.sequences * new_tokens):
            raise SystemExit(f"sampled {sampled} tokens, not {expected}: the arms do not compare")
        return seconds

    return Arm(sample=sample, spent=_spent)


def _spent() -> float:
    return processor_seconds(os.getpid())


def options_of() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work", nargs="+", choices=WORK, default=["groups", "single", "decode"])
    parser.add_argument("--prompts", type=int, help="in place of what --work says, as the three that follow")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, help="processes of our engine; a thread each, if not said")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["generate"])
    return parser.parse_args()


def main() -> None:
    """Measures and prints."""
    options = options_of()
    torch.set_num_threads(options.threads)
    folder = folder_of(options.model)
    decoder = Decoder(model := load(folder), vocab_size=model.config.vocab_size)
    for name in options.work:
        usual = dict(zip(Work.__slots__, WORK[name], strict=True))
        work = Work(**{size: getattr(options, size) or usual[size] for size in usual})
        workers = options.workers or min(options.threads, work.sequences)
        arms = {
            OURS: turn_of(ours(folder, work.samples, workers=workers), work),
            **{peer: turn_of(PEERS[peer](folder, work.samples), work) for peer in options.peers},
        }
        sizes = {size: getattr(work, size) for size in Work.__slots__}
        setting = {"benchmark": "rollout", "work": name, **sizes, "workers": workers, **facts()}
        found = measure(
            arms,
            work,
            rounds=options.rounds,
            warm_tokens=_WARM,
            beside=lambda work=work: ceiling(decoder, work),
        )
        for line in report(*found, work):
            emit(**setting, rounds=options.rounds, **line)
        del arms
        gc.collect()  # ends the processes of our engine


PEERS: Mapping[str, Callable[[str, int], Sampler]] = {"generate": generate, "generate_batch": generate_batch}


if __name__ == "__main__":
    main()
