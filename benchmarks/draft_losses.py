"""What each loss of draft heads is worth at equal budgets: acceptance by depth, and tokens per round.

    python -m benchmarks.draft_losses runs/losses.jsonl [--bed organism structured] [--seeds 0 1 2]
    python -m benchmarks.draft_losses runs/losses.jsonl --summary

For each bed and seed the model writes texts of its own; new heads are fitted to them and learn by forward KL
for `--start` steps, which stands for heads that came with a model; each loss goes on from there for
`--steps`, on the same batches in the same order. Held-out texts say what the drafts are worth: under
rejection sampling the overlap of both laws, under target-only verification what the policy gives the draft's
likeliest token. One JSON line per bed, seed and loss is appended to the file; those that it holds are not
run again. `--summary` prints for each loss means over seeds, and the difference to cross-entropy in points
with its 95 % interval, seed by seed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch

from benchmarks.common import emit, facts, mistakes
from benchmarks.drafts.bed import BEDS, Bed, begin, learn
from turnpoint.drafting.losses import DraftLossName
from turnpoint.drafting.measure import Measured, measure_drafts
from turnpoint.drafting.train import LossPlan
from turnpoint.reports.run_records import read_lines
from turnpoint.rollout.intervals import mean_interval

LOSSES: tuple[DraftLossName, ...] = get_args(DraftLossName)
START = "start"  # the line of what all losses begin with
_AGAINST = "cross_entropy"
_DEPTH = 3


def main() -> None:
    """Runs what is missing, or sums up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path, help="JSON lines, appended to")
    parser.add_argument("--bed", nargs="+", choices=[*BEDS], default=["organism"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=[*LOSSES])
    parser.add_argument("--prompts", type=int, default=150)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--start", type=int, default=280, help="steps of forward KL before them")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    with mistakes(parser):
        rows = [row for _, row in read_lines(options.output)] if options.output.is_file() else []
        if options.summary:
            for record in summarise(rows):
                emit(**record)
            return
    torch.set_num_threads(options.threads)
    done = {(row["bed"], row["seed"], row["loss"]) for row in rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name, seed in itertools.product(options.bed, options.seeds):
        missing = [loss for loss in (START, *options.losses) if (name, seed, loss) not in done]
        if missing:
            run(BEDS[name](options.prompts), seed, missing, options)


def run(bed: Bed, seed: int, missing: Sequence[str], options: argparse.Namespace) -> None:
    """Appends the lines of `missing` losses on one bed with one seed."""
    sizes: Mapping[str, Any] = {"depth": _DEPTH, "batch_tokens": options.batch_tokens}
    start = begin(bed, samples=options.samples, steps=options.start, seed=seed, **sizes)
    for loss in missing:
        began, tried = time.process_time(), copy.deepcopy(start.heads)
        if loss != START:
            plan = LossPlan(loss=cast("DraftLossName", loss))
            learn(tried, bed, start.train, plan=plan, steps=options.steps, seed=seed + 1, **sizes)
        spent = time.process_time() - began
        line = {
            "benchmark": "draft_losses",
            "bed": bed.name,
            "seed": seed,
            "loss": loss,
            "start": options.start,
            "steps": options.steps,
            "batch_tokens": options.batch_tokens,
            "texts": len(start.train),
            **figures(measure_drafts(tried, bed.model.decoder, start.held_out, depth=_DEPTH)),
            "processor_seconds": round(spent, 1),
            **facts(),
        }
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def figures(found: Measured) -> dict[str, Any]:
    """Returns what a line says of drafts."""
    return {
        "rejection": [round(it, 4) for it in found.acceptance],
        "target_only": [round(it, 4) for it in found.target_only],
        "tokens_per_round": round(found.text_lengths[-1], 4),
        "entropy": round(found.entropy, 4),
        "drafts": int(found.counts.sum()),
    }


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a record per bed and loss; raises ValueError without rows.

    Acceptance is the mean over depths, points are hundredths of it.
    """
    if not rows:
        raise ValueError("the file holds no line yet")
    records: list[dict[str, Any]] = []
    for bed, loss in dict.fromkeys((row["bed"], row["loss"]) for row in rows):
        mine = {row["seed"]: row for row in rows if (row["bed"], row["loss"]) == (bed, loss)}
        peers = {row["seed"]: row for row in rows if (row["bed"], row["loss"]) == (bed, _AGAINST)}
        record: dict[str, Any] = {"bed": bed, "loss": loss, "seeds": len(mine)}
        for kind in ("rejection", "target_only"):
            shares = {seed: statistics.fmean(row[kind]) for seed, row in mine.items()}
            over = [
                100 * (share - statistics.fmean(peers[seed][kind]))
                for seed, share in shares.items()
                if seed in peers
            ]
            interval = mean_interval(over)
            record[kind] = round(statistics.fmean(shares.values()), 4)
            record[f"{kind}_points"] = round(statistics.fmean(over), 2) if over else None
            record[f"{kind}_points_95"] = None if interval is None else [round(end, 2) for end in interval]
        record["tokens_per_round"] = round(
            statistics.fmean(row["tokens_per_round"] for row in mine.values()), 3
        )
        records.append(record)
    return records


if __name__ == "__main__":
    main()
