"""Supervised fine-tuning of a tiny model against a plain loop over padded batches, in tokens per second.

PYTHONPATH=src:. python -m benchmarks.sft [--examples 96] [--dtype bfloat16] [--threads 1] [--rounds 5]

Both take the same steps (forward, backward, clipping, AdamW) on the same 1.8 M parameters; tokens are those
of prompts and solutions, padding not counted. Seconds are of the processor: a busy machine matters less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common import emit, facts, median_ratio
from turnpoint.losses import cross_entropy_loss
from turnpoint.metrics import metric_values
from turnpoint.models.decoder import Decoder
from turnpoint.models.demonstration import Demonstration
from turnpoint.tasks.solutions import SolvedTask
from turnpoint.training.sft import Example, learn, pack_examples
from turnpoint.training.step import Trainer
from turnpoint.types import Message, Task, token_array

_VOCABULARY = 47
_PROMPT = 12  # tokens
_SOLUTION = (30, 120)  # tokens, shortest and longest
_IGNORED = -100  # transformers' label for what does not train


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=96)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    examples = make_examples(arguments.examples)
    tokens = sum(example.length for example in examples)
    steps = {"packed": packed(arguments.dtype), "padded": padded(arguments.dtype)}
    losses = {name: step(examples) for name, step in steps.items()}  # and warms up
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            started = time.process_time()
            step(examples)
            seconds[name].append(time.process_time() - started)
    emit(
        benchmark="sft",
        **facts(),
        dtype=arguments.dtype,
        examples=len(examples),
        tokens=tokens,
        tokens_per_cpu_second={name: round(tokens / statistics.median(it)) for name, it in seconds.items()},
        ratio=round(median_ratio(seconds["padded"], seconds["packed"]), 2),
        first_losses=losses,
    )


def make_examples(count: int) -> list[Example]:
    """Returns examples of random tokens."""
    rng = np.random.default_rng(0)
    return [
        Example(
            solved=SolvedTask(
                task=Task(id=str(index), messages=(Message(role="user", content=""),), answer=""), text=""
            ),
            demonstration=Demonstration(
                prompt_ids=token_array(rng.integers(2, _VOCABULARY, _PROMPT)),
                token_ids=token_array(rng.integers(2, _VOCABULARY, rng.integers(*_SOLUTION, endpoint=True))),
                in_context=True,
            ),
        )
        for index in range(count)
    ]


def make_model(dtype: str) -> Any:
    """Returns a random Llama of 1.8 M parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()


def ignore(*_: object) -> None:
    """Nobody asked."""


Step = Callable[[list[Example]], float]


def packed(dtype: str) -> Step:
    """Returns what `turnpoint sft` does in a step; it gives the loss."""
    decoder = Decoder(make_model(dtype), vocab_size=_VOCABULARY)
    trainer = Trainer(decoder, loss=cross_entropy_loss, learning_rate=1e-3)

    def step(examples: list[Example]) -> float:
        metrics = learn(trainer, pack_examples(examples, max_tokens=4096), progress=ignore)
        return metric_values(metrics)["cross_entropy"]

    return step


def padded(dtype: str) -> Step:
    """Returns the step of a plain loop: one padded batch, transformers' own loss on labels."""
    model = make_model(dtype)
    settings: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.0, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), **settings)

    def step(examples: list[Example]) -> float:
        rows = [
            torch.tensor([*it.demonstration.prompt_ids.tolist(), *it.demonstration.token_ids.tolist()])
            for it in examples
        ]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_IGNORED)
        labels[:, :_PROMPT] = _IGNORED
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        loss = model(input_ids=ids, attention_mask=mask.long(), labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main()
