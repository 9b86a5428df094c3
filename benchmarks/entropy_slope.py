"""How the tokens of a round fall with the policy's entropy, for frozen heads of two losses.

    python -m benchmarks.entropy_slope [--bed organism] [--seeds 0 1 2] [--losses cross_entropy end_to_end_tv]

Heads are trained once, as in benchmarks/draft_losses.py, on what the policy writes at temperature 1 before
RL. They are then measured on new texts of the policy's own,

    temperature    sampled at several temperatures, and drafted at them
    run            sampled at 1 after every `--every` steps of GRPO, `--stages` times (organism alone)

and the slope of tokens per round on entropy (nats) is fitted by least squares. Prints a JSON line per point
and one per slope. arXiv 2606.12370 has -1.68 for heads of cross-entropy and -0.06 for end-to-end total
variation, of a model of 35 B parameters over an RL run.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import turnpoint as tp
from benchmarks.common import emit, facts
from benchmarks.draft_losses import LOSSES
from benchmarks.drafts.bed import BEDS, Bed, begin, learn, own_texts
from benchmarks.organism.bed import make_organism
from turnpoint.drafting.losses import DraftLossName
from turnpoint.drafting.measure import measure_drafts
from turnpoint.drafting.texts import DraftHeads
from turnpoint.drafting.train import LossPlan
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.models.mtp_folder import load_heads, save_heads

_DEPTH = 3
_TEMPERATURES = (0.4, 0.6, 0.8, 1.0, 1.2, 1.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One policy, or one temperature."""

    over: str  # "temperature" | "run"
    at: float  # the temperature, or the steps of RL
    entropy: float  # nats per token
    tokens_per_round: float
    acceptance: tuple[float, ...]  # by depth


def slope(points: Sequence[Point]) -> float:
    """Returns the least-squares slope of tokens per round on entropy, per nat."""
    entropy = [it.entropy for it in points]
    return float(np.polyfit(entropy, [it.tokens_per_round for it in points], 1)[0])


def main() -> None:
    """Trains, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bed", choices=[*BEDS], default="organism")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=["cross_entropy", "end_to_end_tv"])
    parser.add_argument("--prompts", type=int, default=150)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--start", type=int, default=280, help="steps of forward KL before them")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--stages", type=int, default=6)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for seed in options.seeds:
        bed = BEDS[options.bed](options.prompts)
        with tempfile.TemporaryDirectory() as scratch:
            heads = trained(bed, seed, options, Path(scratch))
            points = {
                loss: [*over_temperatures(bed, heads[loss], seed, options.samples)] for loss in options.losses
            }
            if options.bed == "organism":
                for loss, point in over_run(bed, seed, options, Path(scratch)):
                    points[loss].append(point)
        report(points, seed=seed, bed=bed.name)


def report(points: dict[str, list[Point]], *, seed: int, bed: str) -> None:
    """Prints points and slopes."""
    setting: dict[str, Any] = {"benchmark": "entropy_slope", "bed": bed, "seed": seed}
    for loss, found in points.items():
        for it in found:
            emit(
                **setting,
                loss=loss,
                over=it.over,
                at=it.at,
                entropy=round(it.entropy, 4),
                tokens_per_round=round(it.tokens_per_round, 4),
                acceptance=[round(share, 4) for share in it.acceptance],
            )
        for over in dict.fromkeys(it.over for it in found):
            mine = [it for it in found if it.over == over]
            emit(**setting, loss=loss, over=over, slope_per_nat=round(slope(mine), 3), **facts())


def trained(bed: Bed, seed: int, options: argparse.Namespace, scratch: Path) -> dict[str, DraftHeads]:
    """Returns heads by loss, all from the same beginning, and keeps each in a folder of `scratch`."""
    sizes: dict[str, Any] = {"depth": _DEPTH, "batch_tokens": options.batch_tokens}
    start = begin(bed, samples=options.samples, steps=options.start, seed=seed, **sizes)
    found: dict[str, DraftHeads] = {}
    for loss in options.losses:
        found[loss] = copy.deepcopy(start.heads)
        plan = LossPlan(loss=cast("DraftLossName", loss))
        learn(found[loss], bed, start.train, plan=plan, steps=options.steps, seed=seed + 1, **sizes)
        save_heads(found[loss], scratch / loss)
    return found


def over_temperatures(bed: Bed, heads: DraftHeads, seed: int, samples: int) -> Iterator[Point]:
    """Yields a point for each temperature."""
    for temperature in _TEMPERATURES:
        texts = own_texts(bed, samples=samples, seed=seed + 1000, temperature=temperature)
        measured = measure_drafts(heads, bed.model.decoder, texts, depth=_DEPTH, temperature=temperature)
        yield Point(
            over="temperature",
            at=temperature,
            entropy=measured.entropy,
            tokens_per_round=measured.text_lengths[-1],
            acceptance=tuple(measured.acceptance),
        )


def over_run(bed: Bed, seed: int, options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Point]]:
    """Yields each loss with a point for each policy of a run of GRPO, that before it first."""
    for stage, policy in enumerate(
        itertools.islice(policies(seed, options.every, scratch), options.stages + 1)
    ):
        texts = own_texts(bed, samples=options.samples, seed=seed + 2000 + stage, model=policy)
        for loss in options.losses:
            heads = load_heads(policy.decoder, scratch / loss, retrained=True)
            measured = measure_drafts(heads, policy.decoder, texts, depth=_DEPTH)
            yield (
                loss,
                Point(
                    over="run",
                    at=stage * options.every,
                    entropy=measured.entropy,
                    tokens_per_round=measured.text_lengths[-1],
                    acceptance=tuple(measured.acceptance),
                ),
            )


def policies(seed: int, every: int, scratch: Path) -> Iterator[LoadedModel]:
    """Yields the organism, then the same after each `every` steps of GRPO (its optimiser begins anew)."""
    organism = make_organism()
    folder = organism.model
    for stage in itertools.count():
        yield load_model(folder, dtype="float32")
        recipe = tp.parse_recipe(
            organism.recipe.model_dump(mode="json")
            | {"name": f"stage-{stage}", "output_dir": str(scratch), "seed": seed + stage, "evaluation": None}
        )
        recipe = recipe.model_copy(
            update={
                "model": recipe.model.model_copy(update={"path": str(folder)}),
                "training": recipe.training.model_copy(update={"steps": every}),
            }
        )
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            folder = tp.export(tp.train(recipe).folder, scratch / f"policy-{stage}")


if __name__ == "__main__":
    main()
