"""Arms that sample the same prompts one after the other; what they took, and what the machine allows.

Only one of them works at a time; what others spend meanwhile is counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from turnpoint.models.decoder import Decoder
from turnpoint.speed.ceilings import MeasuredProducts, measure_bandwidth
from turnpoint.speed.context import context_bytes, layers_of
from turnpoint.speed.products import arithmetic_seconds, passes_of, products_of, weight_bytes
from turnpoint.types import TokenIds, token_array

OURS = "turnpoint"
PREFILL = 1024  # prompt tokens at once, in the ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one round samples."""

    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int

    @property
    def sequences(self) -> int:
        """Sequences that decode together."""
        return self.prompts * self.samples

    @property
    def tokens(self) -> int:
        """Tokens sampled in a round."""
        return self.sequences * self.new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one arm took in one round."""

    seconds: float
    processor: float  # seconds of all its processes
    idle: float  # processor seconds of other arms' processes meanwhile


Sample: TypeAlias = Callable[[int, list[TokenIds], int], float]  # round, prompts, new tokens -> seconds
Clock: TypeAlias = Callable[[], float]  # processor seconds so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side."""

    sample: Sample
    spent: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Seconds that a round takes at least, prompts computed once; no attention but its memory."""

    arithmetic: float
    memory: float


def ceiling(decoder: Decoder, work: Work) -> Ceiling:
    """Measures how fast matrix products and memory are now, with this process's threads."""
    products, rows = products_of(decoder), work.sequences
    prompt_tokens = work.prompts * work.prompt_tokens
    passes = [
        *passes_of(products.layers, prompt_tokens, at_once=PREFILL),
        *passes_of(products.layers, rows * (work.new_tokens - 1), at_once=rows),
        *passes_of(products.head, rows * work.new_tokens, at_once=rows),
    ]
    read = context_bytes(
        layers_of(decoder),
        prompts=work.prompts,
        prompt_tokens=work.prompt_tokens,
        sequences=rows,
        suffix=work.new_tokens / 2,
    )
    bandwidth = measure_bandwidth(torch.device("cpu"), None)
    return Ceiling(
        arithmetic=arithmetic_seconds(passes, MeasuredProducts()),
        memory=(weight_bytes(passes) + read * (work.new_tokens - 1)) / bandwidth,
    )


def measure(
    arms: Mapping[str, Arm],
    work: Work,
    *,
    rounds: int,
    warm_tokens: int,
    beside: Callable[[], Ceiling],
) -> tuple[dict[str, list[Turn]], list[Ceiling]]:
    """Returns each arm's turns, and the ceilings taken behind them; the arms change who is first.

    One round of `warm_tokens` new tokens before them warms up and is not counted. Arms with one and the same
    clock are in one process, where nobody can be told to idle.
    """
    rng = np.random.default_rng(0)
    turns: dict[str, list[Turn]] = {name: [] for name in arms}
    ceilings: list[Ceiling] = []
    for number in range(rounds + 1):
        shape = (work.prompts, work.prompt_tokens)
        prompts = [token_array(row) for row in rng.integers(100, 40_000, shape)]
        new_tokens = work.new_tokens if number else min(warm_tokens, work.new_tokens)
        for name in list(arms)[:: 1 if number % 2 else -1]:
            mine = arms[name].spent
            others = {arm.spent for arm in arms.values()} - {mine}
            spent, idle = mine(), sum(other() for other in others)
            seconds = arms[name].sample(number, prompts, new_tokens)
            turn = Turn(
                seconds=seconds, processor=mine() - spent, idle=sum(other() for other in others) - idle
            )
            if number:
                turns[name].append(turn)
        if number:
            ceilings.append(beside())
    return turns, ceilings


def report(
    turns: Mapping[str, Sequence[Turn]], ceilings: Sequence[Ceiling], work: Work
) -> list[dict[str, Any]]:
    """Returns a line for each arm, one for the ceilings and one for each peer with ratios of medians."""
    clock = {name: statistics.median(it.seconds for it in each) for name, each in turns.items()}
    processor = {name: statistics.median(it.processor for it in each) for name, each in turns.items()}
    limits = {
        "arithmetic": work.tokens / statistics.median(it.arithmetic for it in ceilings),
        "memory": work.tokens / statistics.median(it.memory for it in ceilings),
    }
    bound = min(limits.values())
    lines: list[dict[str, Any]] = [
        {
            "arm": name,
            "seconds": [round(it.seconds, 2) for it in each],
            "processor_seconds": [round(it.processor, 2) for it in each],
            "idle_processor_seconds_of_others": [round(it.idle, 2) for it in each],
            "tokens_per_second": round(work.tokens / clock[name], 1),
            "share_of_ceiling": round(work.tokens / clock[name] / bound, 3),
        }
        for name, each in turns.items()
    ]
    lines.append({"arm": "ceiling", **{name: round(value, 1) for name, value in limits.items()}})
    for name in [name for name in turns if name != OURS]:
        ratios = {
            "times_faster": round(clock[name] / clock[OURS], 2),
            "times_less_processor_time": round(processor[name] / processor[OURS], 2),
        }
        lines.append({"arm": f"{OURS} over {name}", **ratios})
    return lines
