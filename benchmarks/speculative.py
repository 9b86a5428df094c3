"""Rollouts with drafts against the same engine without, in one process and taking turns.

    python -m benchmarks.speculative --heads FOLDER [--bed structured] [--flights 1 8 64] [--rounds 3]

Draft heads are read from FOLDER, or trained there if it is not there: on what the model writes by itself,
`--start` steps of forward KL, then `--steps` of end-to-end total variation. Arms: `plain`, an engine without
drafts; `fixed`, always to `--depth`; `online`, the depth with the most tokens per second as measured, 0
among them. Each round asks every arm for the same prompts with a new seed, so many requests in flight, until
all have ended by themselves or at the limit. `tail`: from when 8 are left until none is, the end of a batch.
Texts and so lengths differ by arm; figures are tokens per second. A first round warms up, and tells `online`
what things cost. Prints a JSON line per flight and arm with the median over rounds of the ratio to `plain`,
and tokens per round as counted and as held-out texts predict them (for `fixed`).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import emit, facts
from benchmarks.drafts.bed import BEDS, Bed, fitted_heads, learn, own_texts, requests
from turnpoint.drafting.measure import measure_drafts
from turnpoint.drafting.texts import split_held_out
from turnpoint.drafting.train import LossPlan
from turnpoint.engine import TorchEngine
from turnpoint.engine.depth import DepthRule, FixedDepth, GoodputDepth
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.parallel import ParallelDrafter
from turnpoint.engine.speculation import Speculation
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_folder import load_heads, save_heads
from turnpoint.protocols import GenerateRequest

PLAIN = "plain"
_TAIL = 8  # requests that are left


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one arm did in one round."""

    tokens_per_second: float
    tail: float  # the same, from when few requests were left


def main() -> None:
    """Measures and prints."""
    options = options_of()
    torch.set_num_threads(options.threads)
    bed = BEDS[options.bed](options.prompts)
    predicted = make_heads(bed, options)
    for flight in options.flights:
        arms = {
            PLAIN: engine_of(bed, None, options.heads),
            "fixed": engine_of(bed, FixedDepth(options.depth), options.heads),
            "online": engine_of(bed, GoodputDepth(options.depth), options.heads),
        }
        took = measure(bed, arms, flight=flight, rounds=options.rounds)
        plain = took[PLAIN]
        for name, turns in took.items():
            stats = arms[name].stats
            emit(
                benchmark="speculative",
                bed=bed.name,
                flight=flight,
                arm=name,
                depth=options.depth,
                tokens_per_second=round(statistics.median(it.tokens_per_second for it in turns), 1),
                ratio=ratio([it.tokens_per_second for it in turns], [it.tokens_per_second for it in plain]),
                tail_tokens_per_second=round(statistics.median(it.tail for it in turns), 1),
                tail_ratio=ratio([it.tail for it in turns], [it.tail for it in plain]),
                tokens_per_round=round(1 + stats.accepted / stats.rounds, 3) if stats.rounds else None,
                drafted=stats.drafted,
                predicted=predicted,
                rounds=options.rounds,
                **facts(),
            )


def ratio(mine: Sequence[float], plain: Sequence[float]) -> float:
    """Returns the median over rounds of the ratio within one."""
    return round(statistics.median(a / b for a, b in zip(mine, plain, strict=True)), 3)


def options_of() -> argparse.Namespace:
    """Returns what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--heads", type=Path, required=True, help="where they are, or will be")
    parser.add_argument("--bed", choices=[*BEDS], default="structured")
    parser.add_argument("--flights", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=450)
    parser.add_argument("--start", type=int, default=200, help="steps of training by forward KL")
    parser.add_argument("--steps", type=int, default=80, help="steps of end-to-end total variation")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def make_heads(bed: Bed, options: argparse.Namespace) -> float:
    """Trains the heads unless they are there; returns the tokens per round that held-out texts predict."""
    texts = own_texts(bed, samples=1, seed=0)
    train, held_out = split_held_out(texts, share=0.15, seed=0)
    if options.heads.exists():
        heads = load_heads(bed.model.decoder, options.heads)
    else:
        heads = fitted_heads(bed, train)
        plan = LossPlan(loss="end_to_end_tv", first="forward_kl", first_steps=options.start)
        steps = options.start + options.steps
        sizes: dict[str, Any] = {"depth": options.depth, "batch_tokens": options.batch_tokens}
        learn(heads, bed, train, plan=plan, steps=steps, seed=0, **sizes)
        save_heads(heads, options.heads)
    measured = measure_drafts(heads, bed.model.decoder, held_out, depth=options.depth)
    emit(
        benchmark="speculative",
        bed=bed.name,
        entropy=round(measured.entropy, 3),
        acceptance=[round(it, 3) for it in measured.acceptance],
        target_only=[round(it, 3) for it in measured.target_only],
        predicted=[round(it, 3) for it in measured.text_lengths],
    )
    return round(measured.text_lengths[-1], 3)


def engine_of(bed: Bed, rule: DepthRule | None, folder: Path) -> TorchEngine:
    """Returns an engine that drafts by `rule`, or not at all."""
    model = bed.model
    speculation = None
    if rule is not None:
        heads = load_heads(model.decoder, folder)
        heads.requires_grad_(False)
        drafter = MtpDrafter(heads) if isinstance(heads, MtpHeads) else ParallelDrafter(heads)
        speculation = Speculation(drafter=drafter, depth=rule)
    return TorchEngine(
        model.decoder,
        decode=bed.renderer.text,
        context_length=model.context_length,
        max_running=128,
        speculation=speculation,
    )


def measure(bed: Bed, arms: dict[str, TorchEngine], *, flight: int, rounds: int) -> dict[str, list[Took]]:
    """Returns what each arm took in each round, the first one left out; the arms change who is first."""
    took: dict[str, list[Took]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        asked = requests(bed, samples=1, seed=100 + number)[: max(6, min(2 * flight, 64))]
        for name in list(arms)[:: 1 if number % 2 else -1]:
            turn = asyncio.run(serve(arms[name], asked, flight))
            if number:
                took[name].append(turn)
    return took


async def serve(engine: TorchEngine, asked: Sequence[GenerateRequest], flight: int) -> Took:
    """Returns what it took to answer all of `asked`, `flight` at once."""
    room, left, few = asyncio.Semaphore(flight), len(asked), min(_TAIL, flight)
    tail = began = time.perf_counter()
    before = tail_before = engine.stats.sampled

    async def answer(request: GenerateRequest) -> None:
        nonlocal left, tail, tail_before
        async with room:
            await engine.generate(request)
        left -= 1
        if left == few:
            tail, tail_before = time.perf_counter(), engine.stats.sampled

    await asyncio.gather(*[answer(it) for it in asked])
    ended, sampled = time.perf_counter(), engine.stats.sampled
    return Took(
        tokens_per_second=(sampled - before) / (ended - began),
        tail=(sampled - tail_before) / (ended - tail),
    )


if __name__ == "__main__":
    main()
