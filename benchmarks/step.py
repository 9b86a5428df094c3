"""Claim: a whole GRPO step (sample, grade, learn) is at least 3 times faster than TRL's GRPOTrainer.

Both train the same model on the same 4 prompts with 8 completions each of up to 64 new tokens, at
temperature 1, with the same reward (the share of vowels: no grading hides the difference, and nothing makes
answers longer), AdamW, bfloat16 compute over float32 weights and one update per batch. Their steps alternate
in one process: ours runs between two of TRL's. The first step of each is not counted.

    python -m benchmarks.step [--model FOLDER] [--steps 3]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from benchmarks.common import emit, facts, folder_of, median_ratio
from turnpoint.assemble import Policy, load_policy
from turnpoint.config import RunConfig, parse_recipe
from turnpoint.credit import GroupAdvantage
from turnpoint.metrics import metric_values
from turnpoint.objective import make_trainer
from turnpoint.rollout import Rollouter
from turnpoint.training.loop import publish
from turnpoint.training.packing import pack_step
from turnpoint.types import Message, Task, Verdict

PROMPTS, SAMPLES, NEW_TOKENS = 4, 8, 64
LEARNING_RATE = 1e-6
QUESTIONS = [
    f"Explain in a few sentences why a {thing} is useful." for thing in ("lever", "map", "clock", "bridge")
]


def reward(text: str) -> float:
    """The reward of both: it differs within a group, so that both learn from every group."""
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


class VowelVerifier:
    """Our side of the reward."""

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns the reward."""
        return Verdict.scored(reward(completion))

    async def self_check(self, task: Task) -> Verdict:
        """Returns that there is nothing to check."""
        return Verdict.scored(1.0)


def our_step(model: str) -> Callable[[], int]:
    """Returns a function that takes one step of ours and returns the sampled tokens."""
    config = parse_recipe(
        {
            "model": {"path": model, "dtype": "bfloat16"},
            "tasks": {"kind": "jsonl", "path": "unused"},
            "sampling": {"max_new_tokens": NEW_TOKENS},
            "rollout": {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES},
            "optimizer": {"learning_rate": LEARNING_RATE},
        }
    )
    policy = load_policy(config, examples=())
    trainer = make_trainer(config, policy)
    rollouter = _rollouter(config, policy)
    tasks = [
        Task(id=question, messages=(Message(role="user", content=question),), answer="")
        for question in QUESTIONS
    ]
    runner = asyncio.Runner()
    version = 0

    def step() -> int:
        nonlocal version
        version += 1
        groups = runner.run(rollouter.collect(tasks, step=version))
        packed = pack_step(
            [(group, GroupAdvantage().credit(group)) for group in groups],
            max_tokens=config.training.micro_batch_tokens,
            aggregation="token",
            max_new_tokens=NEW_TOKENS,
        )
        trainer.forward_backward(packed)
        assert metric_values(trainer.optim_step())["grad_norm"] > 0
        publish(trainer, policy.engine, version=version)
        return sum(group.num_generated(member) for group in groups for member in range(SAMPLES))

    return step


def _rollouter(config: RunConfig, policy: Policy) -> Rollouter:
    return Rollouter(
        policy.engine,
        policy.renderer,
        VowelVerifier(),
        samples_per_prompt=SAMPLES,
        temperature=1.0,
        max_new_tokens=NEW_TOKENS,
        seed=config.seed,
    )


def alternate_with_trl(model: str, step: Callable[[], int], *, steps: int) -> dict[str, Any]:
    """Runs `steps` + 1 steps of TRL with one of ours after each; returns seconds and tokens per step."""
    import transformers
    from datasets import Dataset

    trl: Any = importlib.import_module("trl")  # only here, and untyped
    seconds: dict[str, list[float]] = {"trl": [], "turnpoint": []}
    tokens: dict[str, list[float]] = {"trl": [], "turnpoint": []}

    class TakeTurns(transformers.TrainerCallback):
        """Times TRL's step and runs ours behind it."""

        started = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            """Notes when TRL begins."""
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """Notes when TRL ends, and takes our turn."""
            between = time.perf_counter()
            sampled = step()
            seconds["trl"].append(between - self.started)
            seconds["turnpoint"].append(time.perf_counter() - between)
            tokens["turnpoint"].append(sampled)

    def vowels(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens["trl"].append(sum(len(ids) for ids in completion_ids))
        return [reward(completion[0]["content"]) for completion in completions]

    rows = [{"prompt": [{"role": "user", "content": question}]} for question in QUESTIONS] * (steps + 1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=vowels,
            train_dataset=Dataset.from_list(rows),
            callbacks=[TakeTurns()],
            args=trl.GRPOConfig(
                output_dir=folder,
                use_cpu=not torch.cuda.is_available(),
                bf16=True,
                gradient_checkpointing=False,  # on by default: it saves memory and costs the peer time
                per_device_train_batch_size=PROMPTS * SAMPLES,
                num_generations=SAMPLES,
                max_completion_length=NEW_TOKENS,
                max_steps=steps + 1,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                beta=0.0,
                scale_rewards="none",
                save_strategy="no",
                report_to="none",
                logging_strategy="no",
                disable_tqdm=True,
            ),
        )
        with contextlib.redirect_stdout(sys.stderr):  # where it prints what is no line of ours
            trainer.train()
    return {"seconds": seconds, "tokens": tokens}


def main() -> None:
    """Prints a JSON line per step and one with medians and the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    model = folder_of(arguments.model)
    measured = alternate_with_trl(model, our_step(model), steps=arguments.steps)
    seconds = {name: values[1:] for name, values in measured["seconds"].items()}
    tokens = {name: values[1:] for name, values in measured["tokens"].items()}
    for name, values in seconds.items():
        for index, value in enumerate(values):
            emit(benchmark="step", arm=name, step=index + 1, seconds=value, tokens=tokens[name][index])
    emit(
        benchmark="step",
        prompts=PROMPTS,
        samples=SAMPLES,
        new_tokens=NEW_TOKENS,
        median_seconds={name: statistics.median(values) for name, values in seconds.items()},
        mean_tokens={name: statistics.fmean(values) for name, values in tokens.items()},
        times_faster=median_ratio(seconds["trl"], seconds["turnpoint"]),
        **facts(),
    )


if __name__ == "__main__":
    main()
