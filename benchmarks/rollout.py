"""Rollouts per second: our engine against transformers' `generate` and its continuous batching.

    python -m benchmarks.rollout [--model FOLDER] [--work groups] [--rounds 5]

Every round gives the same new prompts to each arm, one after the other, so that a busy machine hits all of
them; every completion has the same fixed length. Prints one JSON line per arm and one per peer with ratios of
medians, by the clock and by processor time (with one thread the latter hardly feels what else runs; with more
it counts threads that spin while they wait). All arms sample from the whole law at temperature 1; only ours
returns log-probabilities.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.common import emit, facts, folder_of
from turnpoint.engine import TorchEngine
from turnpoint.models.decoder import Decoder
from turnpoint.protocols import GenerateRequest
from turnpoint.types import TokenIds, token_array

# prompts, samples of each, tokens of a prompt, new tokens
WORK = {
    "small": (8, 8, 64, 64),
    "groups": (8, 16, 256, 256),  # a step of GRPO
    "wave": (4, 14, 512, 128),  # the suffixes of a wave of hindsight forks, behind what they share
    "single": (1, 1, 64, 128),
}

Arm = Callable[[int, list[TokenIds]], int]  # round, prompts -> tokens sampled


def load(path: str) -> Any:
    """Returns the model in bfloat16."""
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()


def ours(path: str, samples: int, new_tokens: int, *, workers: int = 1) -> Arm:
    """Returns the arm of `TorchEngine` with so many processes."""
    decoder = Decoder(model := load(path), vocab_size=model.config.vocab_size)
    several: dict[str, Any] = {} if workers == 1 else {"workers": workers}
    engine = TorchEngine(decoder, decode=lambda ids: "", context_length=2048, **several)

    async def serve(number: int, prompts: list[TokenIds]) -> int:
        requests = [
            GenerateRequest(id=f"{number}/{row}/{sample}", prompt_ids=prompt, max_tokens=new_tokens)
            for row, prompt in enumerate(prompts)
            for sample in range(samples)
        ]
        completions = await asyncio.gather(*[engine.generate(request) for request in requests])
        return sum(len(completion.token_ids) for completion in completions)

    return lambda number, prompts: asyncio.run(serve(number, prompts))


def generate(path: str, samples: int, new_tokens: int) -> Arm:
    """Returns the arm of transformers' `generate`."""
    model = load(path)
    model.generation_config.eos_token_id = None

    def run(number: int, prompts: list[TokenIds]) -> int:
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


def generate_batch(path: str, samples: int, new_tokens: int) -> Arm:
    """Returns the arm of transformers' continuous batching."""
    model = load(path)
    config = transformers.GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=new_tokens,
        eos_token_id=-1,
        pad_token_id=0,
    )
    batching = transformers.ContinuousBatchingConfig(max_batch_tokens=2048, num_blocks=128)

    def run(number: int, prompts: list[TokenIds]) -> int:
        inputs = [prompt.tolist() for prompt in prompts for _ in range(samples)]
        outputs = model.generate_batch(
            inputs=inputs,
            generation_config=config,
            continuous_batching_config=batching,
            persistent_manager=True,
            warmup=False,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    return run


def measure(arms: dict[str, Arm], options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Returns (seconds, processor seconds) per arm and round; the first round warms up and is not counted."""
    rng = np.random.default_rng(0)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    expected = options.prompts * options.samples * options.new_tokens
    for number in range(options.rounds + 1):
        shape = (options.prompts, options.prompt_tokens)
        prompts = [token_array(row) for row in rng.integers(100, 40_000, shape)]
        for name, arm in arms.items():
            began, processor = time.perf_counter(), time.process_time()
            sampled = arm(number, prompts)
            elapsed = time.perf_counter() - began, time.process_time() - processor
            if sampled != expected:
                raise SystemExit(f"{name} sampled {sampled} tokens, not {expected}: the arms do not compare")
            if number:
                times[name].append(elapsed)
    return times


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", choices=WORK, default="small")
    parser.add_argument("--prompts", type=int, help="in place of what --work says, as the three that follow")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=["generate", "generate_batch"])
    options = parser.parse_args()
    for name, size in zip(
        ("prompts", "samples", "prompt_tokens", "new_tokens"), WORK[options.work], strict=True
    ):
        if getattr(options, name) is None:
            setattr(options, name, size)
    torch.set_num_threads(options.threads)
    makers = {"generate": generate, "generate_batch": generate_batch}
    chosen = {"turnpoint": ours, **{name: makers[name] for name in options.peers}}
    folder = folder_of(options.model)
    arms = {name: make(folder, options.samples, options.new_tokens) for name, make in chosen.items()}
    sizes = {
        name: value for name, value in vars(options).items() if name not in ("peers", "model", "threads")
    }
    setting = {"benchmark": "rollout", **sizes, **facts()}
    times = measure(arms, options)
    medians = {
        name: [statistics.median(row[kind] for row in rows) for kind in (0, 1)]
        for name, rows in times.items()
    }
    sampled = options.prompts * options.samples * options.new_tokens
    for name, rows in times.items():
        result = {
            "seconds": [round(clock, 2) for clock, _ in rows],
            "processor_seconds": [round(processor, 2) for _, processor in rows],
            "tokens_per_second": round(sampled / medians[name][0], 1),
        }
        emit(**setting, arm=name, **result)
    for name in options.peers:
        clock, processor = (medians[name][kind] / medians["turnpoint"][kind] for kind in (0, 1))
        ratios = {"times_faster": round(clock, 2), "times_less_processor_time": round(processor, 2)}
        emit(**setting, arm=f"turnpoint over {name}", **ratios)


if __name__ == "__main__":
    main()
