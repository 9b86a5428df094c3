"""An evaluation as one table."""

from __future__ import annotations

from collections import Counter

from rich.padding import Padding
from rich.table import Table

from turnpoint.reports.findings import invalid_text
from turnpoint.reports.text import cut, percent
from turnpoint.rollout.evaluate import Evaluation, Score
from turnpoint.rollout.intervals import Interval

_COLUMNS = ("", "accuracy", "95 % interval", "reward", "truncated", "invalid", "tokens")


def evaluation_table(evaluation: Evaluation) -> Padding:
    """Returns greedy and sampled scores, pass@k and the majority answer's accuracy as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    table.add_row("greedy", *_cells(evaluation.greedy))
    if evaluation.sampled is not None:
        table.add_row(f"avg@{evaluation.samples}", *_cells(evaluation.sampled))
    for it in evaluation.passes:
        table.add_row(f"pass@{it.k}", f"{100 * it.share:.1f} %", _interval(it.interval), *[""] * 4)
    if has_majority(evaluation):
        constant = f'always "{cut(evaluation.majority_answer, 20)}"'
        table.add_row(constant, f"{100 * evaluation.majority_accuracy:.1f} %", *[""] * 5)
    return Padding(table, (0, 0, 0, 2))


def has_majority(evaluation: Evaluation) -> bool:
    """Returns whether one answer is right for several problems; programs, for example, all differ."""
    return len(evaluation.outcomes) == 1 or evaluation.majority_accuracy * len(evaluation.outcomes) > 1.5


def invalid_lines(evaluation: Evaluation) -> list[str]:
    """Returns why attempts were invalid: one line, or none when all were judged."""
    scores = [score for score in (evaluation.greedy, evaluation.sampled) if score is not None]
    reasons = Counter[str]()
    for score in scores:
        reasons.update(score.invalid)
    text = invalid_text(reasons, total=sum(score.attempts for score in scores), noun="attempts")
    return [] if text is None else [text]


def _cells(score: Score) -> list[str]:
    accuracy = "none" if score.accuracy is None else f"{100 * score.accuracy:.1f} %"
    reward = "none" if score.mean_reward is None else f"{score.mean_reward:.3f}"
    return [
        accuracy,
        _interval(score.accuracy_interval),
        reward,
        percent(score.truncated),
        str(score.num_invalid),
        f"{score.mean_tokens:.0f}",
    ]


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f} - {100 * interval[1]:.1f} %"
