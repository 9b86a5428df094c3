"""`turnpoint draft --report RUN --heads FOLDER`: what heads are worth on a run's latest rollouts.

Nothing is sampled and nothing speculates: acceptance and tokens per round follow from the laws of policy and
heads along the rollouts, for every depth at once.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console

from turnpoint.commands.common import read_policy, read_problems, restore
from turnpoint.commands.draft_texts import check_depth, check_ids, run_texts
from turnpoint.config import load_recipe
from turnpoint.drafting.measure import Measured, measure_drafts
from turnpoint.engine.tempering import FACTORS
from turnpoint.models.mtp_folder import load_heads
from turnpoint.reports.draft_facts import write_facts
from turnpoint.reports.drafts import measured_json, report_lines, without_nan
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import plural

_ROLLOUTS = 256  # the latest ones


def draft_report(
    run: str | Path, heads: str | Path, *, depth: int = 3, as_json: bool = False
) -> tuple[Measured, float | None]:
    """Returns and shows what `heads` are worth to the latest checkpoint of `run` on its latest rollouts.

    The second is `entropy_slope`. All is also left in the run folder's drafts.json, for `turnpoint report`.
    Rollouts of the last step were sampled an update before the checkpoint; `drift` says how far apart the two
    are. Raises UserError for a run without checkpoint or rollouts, heads of another model, and rollouts
    shorter than `depth`.
    """
    run = Path(run)
    terminal = Terminal(Console(stderr=True)) if as_json else Terminal()
    texts = run_texts(run, limit=_ROLLOUTS)
    config = load_recipe(run / "recipe.yaml")
    policy = read_policy(config, read_problems(config, terminal), terminal, tokens=0)
    # made for the weights that the run began with, or by the run for its own
    learnt = Path(heads).resolve().is_relative_to(run.resolve())
    drafts = load_heads(policy.model.decoder, heads, retrained=learnt)
    checkpoint = restore(config, policy, run, terminal)
    check_ids(texts, policy.model)
    check_depth(texts, depth)
    with terminal.phase("measuring drafts", len(texts)) as phase:
        measured = measure_drafts(
            drafts,
            policy.model.decoder,
            texts,
            depth=depth,
            temperature=config.sampling.temperature,
            batch_tokens=config.training.micro_batch_tokens,
            factors=FACTORS,
            progress=phase.advance,
        )
    slope = entropy_slope(measured)
    found = without_nan(
        {
            **measured_json(measured),
            "entropy_slope": slope,
            "heads": str(heads),
            "checkpoint": str(checkpoint),
        }
    )
    if as_json:
        print(json.dumps(found, allow_nan=False))
    else:
        terminal.line(f"{heads} on {plural(len(texts), 'rollout')} of {run}, to {checkpoint}", "bold")
        for line in report_lines(measured, slope):
            terminal.line(line)
    write_facts(RunFolder(path=run).drafts, found)
    return measured, slope


def entropy_slope(measured: Measured) -> float | None:
    """Returns by how many tokens per round rollouts differ per nat of their mean entropy, by least squares.

    Of rollouts with at least one round, at the deepest depth; None where all entropies are the same. Rollouts
    count alike, long or short.
    """
    points = [(it.entropy / it.tokens, it.tokens / it.rounds[-1]) for it in measured.texts]
    if len(points) < 2:
        return None
    entropies, lengths = np.array(points).T
    apart = entropies - entropies.mean()
    spread = float(apart @ apart)
    return float(apart @ lengths) / spread if spread > 0 else None
