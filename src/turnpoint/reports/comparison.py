"""What a run changed, said as far as it was measured: two evaluations of the same problems, in pairs.

Greedy answers are right or wrong before and after: exact McNemar test on the problems that changed. Shares
over several samples: a permutation test that flips the signs of the differences of whole problems. A change
counts as significant at p < 0.05, two-sided. All of it is about one run with one seed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from turnpoint.reports.branching_metrics import EXAMINATION_SHARE, REFLECT, SCORE
from turnpoint.reports.draft_trend import draft_trend
from turnpoint.reports.findings import Finding
from turnpoint.reports.savings import savings
from turnpoint.reports.teacher_findings import distance, inflation
from turnpoint.reports.text import cut, duration, number, percent, plural
from turnpoint.rollout.evaluate import SOLVED, Evaluation, valid_rewards
from turnpoint.rollout.intervals import clustered_interval, t_quantile

SIGNIFICANT = 0.05
_EXACT_PAIRS = 14  # up to 2^14 sign flips are enumerated
_DRAWS = 20_000  # beyond that, so many are drawn


def mcnemar_test(gained: int, lost: int) -> float:
    """Returns the exact two-sided p that `gained` and `lost` problems are fair coin flips (McNemar, 1947).

    >>> round(mcnemar_test(8, 1), 4)
    0.0391
    """
    changed = gained + lost
    tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def sign_flip_test(differences: Sequence[float]) -> float:
    """Returns the two-sided p that paired `differences` are as likely with the other sign (Fisher, 1935).

    The statistic is the sum. Exact up to 14 differences that are not zero; beyond, 20,000 flips are drawn
    with a fixed seed and p = (1 + as extreme) / (1 + drawn).

    >>> sign_flip_test([0.5, 0.25, 0.75, 0.5])
    0.125
    """
    moved = np.array([difference for difference in differences if difference], dtype=np.float64)
    bound = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()  # equal sums differ by rounding
    if len(moved) <= _EXACT_PAIRS:
        signs = np.array([*itertools.product((-1.0, 1.0), repeat=len(moved))], dtype=np.float64)
        return int(np.count_nonzero(np.abs(signs @ moved) >= bound)) / len(signs)
    draws, sums = np.random.Generator(np.random.Philox(0)), np.zeros(_DRAWS)
    for difference in moved:  # one at a time: thousands of problems x 20,000 draws are gigabytes
        sums += difference * (2.0 * draws.integers(0, 2, _DRAWS) - 1.0)
    extreme = int(np.count_nonzero(np.abs(sums) >= bound))
    return (1 + extreme) / (1 + _DRAWS)


def compare(first: Evaluation, last: Evaluation) -> tuple[Finding, ...]:
    """Returns what changed from `first` to `last` and how the last accuracy stands to the majority answer.

    Only problems with valid attempts in both are compared; how many is said. Mean rewards are compared too
    where they are not just 0 and 1. Raises ValueError when the two hold no problem in common.
    """
    return tuple(_compare(first, last))


def _compare(first: Evaluation, last: Evaluation) -> Iterator[Finding]:
    before = {outcome.task_id: outcome for outcome in first.outcomes}
    pairs = [(before[after.task_id], after) for after in last.outcomes if after.task_id in before]
    if not pairs:
        raise ValueError("two evaluations without a problem in common cannot be compared")
    greedy = [(valid_rewards([old.greedy]), valid_rewards([new.greedy])) for old, new in pairs]
    sampled = [(valid_rewards(old.sampled), valid_rewards(new.sampled)) for old, new in pairs]
    yield accuracy_change("greedy accuracy", greedy)
    if first.samples and last.samples:
        yield accuracy_change(f"avg@{last.samples}", sampled)
    finest = sampled if first.samples and last.samples else greedy
    if any(reward not in (0.0, 1.0) for pair in finest for rewards_of in pair for reward in rewards_of):
        yield reward_change(finest)
    yield against_majority(last)
    yield Finding(
        rule="scope",
        text="one run, one seed: intervals and tests cover the choice of problems and samples, not of seeds",
        warning=False,
    )


Pairs: TypeAlias = Sequence[tuple[Sequence[float], Sequence[float]]]  # valid rewards of a problem, twice


def accuracy_change(name: str, pairs: Pairs) -> Finding:
    """Says how a share of solved attempts changed, with both 95 % intervals and the test."""
    valid = [(_solved(old), _solved(new)) for old, new in pairs if old and new]
    if not valid:
        return _nothing(name)
    olds, news = zip(*valid, strict=True)
    moves = [statistics.fmean(new) - statistics.fmean(old) for old, new in valid]
    gained, lost = sum(move > 0 for move in moves), sum(move < 0 for move in moves)
    if all(move in (-1, 0, 1) for move in moves):
        p, test = mcnemar_test(gained, lost), "exact McNemar test"
    else:
        p, test = sign_flip_test(moves), "paired permutation test"
    text = (
        f"{name} {_share(olds)} -> {_share(news)} on the same {plural(len(valid), 'problem')}: "
        f"{gained} up, {lost} down; {_p(p)}, {test}"
    )
    return _judged(text, p, statistics.fmean(moves))


def reward_change(pairs: Pairs) -> Finding:
    """Says how the mean reward per problem changed, with the test."""
    valid = [(statistics.fmean(old), statistics.fmean(new)) for old, new in pairs if old and new]
    if not valid:
        return _nothing("mean reward")
    moves = [new - old for old, new in valid]
    before, after = (statistics.fmean(side) for side in zip(*valid, strict=True))
    p = sign_flip_test(moves)
    text = (
        f"mean reward {before:.3f} -> {after:.3f} on the same {plural(len(valid), 'problem')}; {_p(p)}, "
        f"paired permutation test"
    )
    return _judged(text, p, after - before)


def against_majority(evaluation: Evaluation) -> Finding:
    """Says whether greedy accuracy is above what always giving the commonest answer scores."""
    score = evaluation.greedy
    baseline = evaluation.majority_accuracy
    constant = f'always answering "{cut(evaluation.majority_answer, 30)}" ({100 * baseline:.1f} %)'
    if score.accuracy is None or score.accuracy_interval is None:
        return _nothing("greedy accuracy")
    low, high = score.accuracy_interval
    figure = f"greedy accuracy {100 * score.accuracy:.1f} % ({_range(low, high)})"
    if low > baseline:
        return Finding(rule="majority", text=f"{figure} is above {constant}", warning=False)
    return Finding(rule="majority", text=f"{figure} is not shown to beat {constant}", warning=True)


def _judged(text: str, p: float, difference: float) -> Finding:
    if p >= SIGNIFICANT:
        return Finding(rule="change", text=f"no significant change: {text}", warning=False)
    word = "improved" if difference > 0 else "worse"
    return Finding(rule="change", text=f"{word}: {text}", warning=difference < 0)


def _nothing(name: str) -> Finding:
    return Finding(rule="change", text=f"{name}: nothing to compare, no attempt is valid", warning=True)


def _solved(of_problem: Sequence[float]) -> list[float]:
    return [float(reward >= SOLVED) for reward in of_problem]


def _share(problems: Sequence[Sequence[float]]) -> str:
    mean = statistics.fmean(map(statistics.fmean, problems))
    return f"{100 * mean:.1f} % ({_range(*clustered_interval(problems))})"


def _range(low: float, high: float) -> str:
    return f"95 %: {100 * low:.0f}-{100 * high:.0f}"


def _p(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


# --- over the steps of a run --------------------------------------------------------------------

TREND_STEPS = 10  # fewer say nothing
ENTROPY_LEFT = 0.2  # of the first steps' entropy


def reward_trend(rewards: Sequence[float]) -> Finding | None:
    """Says how the mean training reward per step moved from the first to the last quarter of the steps.

    "Rose" and "fell" need a difference beyond the 95 % range that the spread between steps explains
    (Welch's t, degrees of freedom of one window). The problems differ between steps, so this is
    no measure of generalisation. None below 10 steps.
    """
    if len(rewards) < TREND_STEPS:
        return None
    window = max(3, len(rewards) // 4)
    start, end = rewards[:window], rewards[-window:]
    moved = statistics.fmean(end) - statistics.fmean(start)
    spread = t_quantile(window - 1) * math.sqrt(
        (statistics.variance(start) + statistics.variance(end)) / window
    )
    figures = (
        f"from {statistics.fmean(start):.3f} (first {window} steps) to {statistics.fmean(end):.3f} "
        f"(last {window} steps)"
    )
    if abs(moved) > spread:
        verb = "rose" if moved > 0 else "fell"
        return Finding(rule="trend", text=f"training reward {verb} {figures}", warning=moved < 0)
    text = f"training reward went {figures}: within the spread between steps"
    return Finding(rule="trend", text=text, warning=False)


def entropy_collapse(entropies: Sequence[float]) -> Finding | None:
    """Warns when the entropy of the last quarter of the steps is below a fifth of the first quarter's."""
    if len(entropies) < TREND_STEPS:
        return None
    window = max(3, len(entropies) // 4)
    start, end = statistics.fmean(entropies[:window]), statistics.fmean(entropies[-window:])
    if end >= ENTROPY_LEFT * start:
        return None
    text = f"entropy fell from {number(start)} to {number(end)} nats per token: little is explored any more"
    return Finding(rule="entropy", text=text, warning=True)


def examination_cost(history: Sequence[Mapping[str, float]]) -> Finding | None:
    """Says what reflections and scoring took, summed over the roots of all steps; None where nothing did."""
    steps = [figures for figures in history if figures.get(EXAMINATION_SHARE)]
    if not steps:
        return None
    reflect, score = (sum(figures[name] for figures in steps) for name in (REFLECT, SCORE))
    share = statistics.fmean(figures[EXAMINATION_SHARE] for figures in steps)
    text = (
        f"reflections took {duration(reflect)} and scoring {duration(score)}, summed over roots, which "
        f"overlap: {percent(share)} of a root's time in rollouts"
    )
    return Finding(rule="examination", text=text, warning=False)


def run_verdict(history: Sequence[Mapping[str, float]], by_step: Mapping[int, Evaluation]) -> list[Finding]:
    """Returns what the whole run can be said to have done; `history` has the figures of each step."""
    trends = [
        reward_trend([figures["reward"] for figures in history if "reward" in figures]),
        entropy_collapse([figures["entropy"] for figures in history if "entropy" in figures]),
        examination_cost(history),
        distance(history, least=TREND_STEPS),
        inflation(history, least=TREND_STEPS),
        draft_trend(history),
    ]
    evaluations = [by_step[step] for step in sorted(by_step)]
    changes = compare(evaluations[0], evaluations[-1]) if len(evaluations) > 1 else ()
    return [*(finding for finding in trends if finding is not None), *changes, *savings(history)]
