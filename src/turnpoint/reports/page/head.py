"""What stands above the groups of a page: what was run, what came of it in words, evaluations, curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnpoint.config import RunConfig, SftConfig
from turnpoint.reports.comparison import run_verdict
from turnpoint.reports.evaluation_table import has_majority
from turnpoint.reports.findings import Finding
from turnpoint.reports.plan import optimizer_line
from turnpoint.reports.plan_objective import objective_lines
from turnpoint.reports.run_records import StepRecord
from turnpoint.reports.sft import HeldOut, sft_verdict
from turnpoint.reports.text import cut, plural
from turnpoint.rollout.evaluate import Evaluation, Score
from turnpoint.types import TokenKind

# Sampled, whatever became of it: what a run is charged for on the token axis.
GENERATED = (TokenKind.ROOT, TokenKind.SUFFIX, TokenKind.REFLECTION, TokenKind.DISCARDED)
_SFT_OBJECTIVE = "cross-entropy, mean over the solution tokens of a step; prompts do not train"


def train_head(
    config: RunConfig,
    steps: Sequence[StepRecord],
    evaluations: Mapping[int, Evaluation],
    drafts: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the head of a run of `turnpoint train`, as JSON values; `drafts`: what is known of them."""
    return {
        "name": config.name,
        "facts": [
            ["model", [config.model.path]],
            ["objective", objective_lines(config)],
            ["optimizer", [optimizer_line(config.optimizer)]],
            ["progress", [_progress(len(steps), config.training.steps)]],
            *([["drafts", [*drafts]]] if drafts else []),
        ],
        "findings": _findings(run_verdict([step.metrics for step in steps], evaluations), steps),
        "evaluations": [_evaluation(step, evaluations[step]) for step in sorted(evaluations)],
        "curves": _curves(steps, _accuracies(evaluations)),
    }


def sft_head(
    config: SftConfig, steps: Sequence[StepRecord], held_out: Mapping[int, HeldOut]
) -> dict[str, Any]:
    """Returns the head of a run of `turnpoint sft`, as JSON values."""
    losses = [step.metrics["cross_entropy"] for step in steps if "cross_entropy" in step.metrics]
    ends = [held_out[step] for step in (min(held_out), max(held_out))] if len(held_out) > 1 else [None, None]
    measured = [
        [step, _number(held_out[step].cross_entropy)]
        for step in sorted(held_out)
        if math.isfinite(held_out[step].cross_entropy)
    ]
    return {
        "name": config.name,
        "facts": [
            ["model", [config.model.path]],
            ["objective", [_SFT_OBJECTIVE]],
            ["optimizer", [optimizer_line(config.optimizer)]],
            ["progress", [f"supervised fine-tuning, {plural(len(steps), 'step')}"]],
        ],
        "findings": _findings(sft_verdict(losses, before=ends[0], after=ends[1]), steps),
        "evaluations": [],
        "curves": _curves(steps, {"held-out cross-entropy": measured} if measured else {}),
    }


def recipe_head(config: RunConfig) -> dict[str, Any]:
    """Returns the head of a page about a recipe that has not been trained: what would be in force."""
    return {
        "name": config.name,
        "facts": [["model", [config.model.path]], ["objective", objective_lines(config)]],
        "findings": [],
        "evaluations": [],
        "curves": None,
    }


def _progress(done: int, asked: int) -> str:
    left = "" if done >= asked else "; stopped, or still going: run the command again for what is new"
    return f"{done:,} of {plural(asked, 'step')}{left}"


def _findings(verdict: Iterable[Finding], steps: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """The run's verdict, then the last of each kind that its steps said, with how often and when."""
    told = [{"text": it.text, "warning": it.warning, "step": None, "times": 1} for it in verdict]
    last: dict[str, dict[str, Any]] = {}
    for step in steps:
        for it in step.findings:
            times = last[it.rule]["times"] + 1 if it.rule in last else 1
            last[it.rule] = {"text": it.text, "warning": it.warning, "step": step.step, "times": times}
    return [*told, *last.values()]


# --- evaluations --------------------------------------------------------------------------------


def _evaluation(step: int, evaluation: Evaluation) -> dict[str, Any]:
    scores = {"greedy": evaluation.greedy}
    if evaluation.sampled is not None:
        scores[f"avg@{evaluation.samples}"] = evaluation.sampled
    return {
        "step": step,
        "problems": len(evaluation.outcomes),
        "majority": [cut(evaluation.majority_answer, 30), evaluation.majority_accuracy]
        if has_majority(evaluation)
        else None,
        "passes": [[it.k, it.share, it.interval] for it in evaluation.passes],
        "scores": {name: _score(score) for name, score in scores.items()},
    }


def _score(score: Score) -> dict[str, Any]:
    return {
        "accuracy": score.accuracy,
        "interval": score.accuracy_interval,
        "reward": score.mean_reward,
        "truncated": score.truncated,
        "invalid": score.num_invalid,
        "tokens": score.mean_tokens,
    }


def _accuracies(evaluations: Mapping[int, Evaluation]) -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = {}
    for step in sorted(evaluations):
        evaluation = evaluations[step]
        for name, score in (
            ("held-out accuracy", evaluation.greedy),
            (f"held-out avg@{evaluation.samples}", evaluation.sampled),
        ):
            if score is not None and score.accuracy is not None:
                found.setdefault(name, []).append([step, _number(score.accuracy)])
    return found


# --- curves -------------------------------------------------------------------------------------


def _curves(steps: Sequence[StepRecord], held_out: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """Returns each figure as [step, value] pairs, and the axes: what each step had cost when it ended."""
    names = dict.fromkeys(name for step in steps for name in step.metrics)
    generated = [
        sum(_finite(step.metrics.get(f"tokens/{kind}", 0.0)) for kind in GENERATED) for step in steps
    ]
    return {
        "steps": [step.step for step in steps],
        "tokens": [_rounded(total, 0) for total in itertools.accumulate(generated)],
        "seconds": [
            _rounded(total, 2) for total in itertools.accumulate(step.wall_seconds for step in steps)
        ],
        "figures": {
            **held_out,
            **{
                name: [
                    [step.step, _number(step.metrics[name])]
                    for step in steps
                    if math.isfinite(step.metrics.get(name, math.nan))
                ]
                for name in names
            },
        },
    }


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _rounded(value: float, digits: int) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
