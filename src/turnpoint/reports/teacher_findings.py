"""What teachers' figures say in words: of a step, of a policy before its first step, of a whole run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from turnpoint.metrics import Mean, Metric, Metrics, Sum
from turnpoint.reports.finding import Finding
from turnpoint.reports.text import number, percent, plural
from turnpoint.rollout.intervals import t_quantile
from turnpoint.teachers.detail import CONCENTRATION, SILENT
from turnpoint.teachers.kinds import KINDS
from turnpoint.teachers.metrics import KL
from turnpoint.teachers.scoring import Silence
from turnpoint.types import Group

MUCH_SILENCE = 0.5  # share of valid rollouts without a word
NOTHING_SAID = 1e-3  # nats; 99 % of |d| below it teach nothing
MUCH_CLIPPED = 0.2  # share of tokens whose d the clip changes
FEW_DECIDE = 0.5  # share of all |d| on one token in a hundred
LITTLE_KL = 0.01  # nats per token, up to which its parts are not worth a warning
MUCH_TEMPLATE = 0.5  # of the KL, on tokens that are no content
_GAP, _CLIPPED, _TOKENS = "teacher/gap_p99", "teacher/clipped", "teacher/tokens"
_WHY = {
    Silence.UNTOLD: "no other rollout of the group earned its reward",
    Silence.TOO_LONG: "beyond the teacher's context",
    Silence.EMPTY: "nothing was generated",
}
_NAMES = {"content": "content", "template": "ends of turns", "special": "other special tokens"}


def teacher_findings(groups: Sequence[Group], metrics: Metrics, *, first: bool) -> Iterator[Finding]:
    """Yields what is to be said about the teachers of a step; nothing where it has none.

    On the `first` step of a run, where its KL lies is reported in any case.
    """
    if KL not in metrics:
        return
    spoke = metrics[_TOKENS].value or 0
    rules = [silence(groups, metrics, spoke=bool(spoke))]
    if spoke:
        rules += [agreement(metrics[_GAP].value or 0.0), clipping(metrics), concentration(metrics)]
    yield from (found for found in rules if found is not None)
    split = {kind: metrics.get(f"teacher/kl_{kind}") for kind in KINDS}
    if first and spoke:
        yield template({kind: mean for kind, mean in split.items() if isinstance(mean, Mean)})


def silence(groups: Sequence[Group], metrics: Metrics, *, spoke: bool) -> Finding | None:
    """At least half of the valid rollouts have no teacher's word: how many, and why."""
    silent = _value(metrics, SILENT)
    valid = sum(member.verdict.valid for group in groups for member in group.members)
    if not silent or silent < MUCH_SILENCE * valid:
        return None
    reasons = {why: _value(metrics, f"{SILENT}/{why}") for why in Silence}
    told = ", ".join(f"{_WHY[why]} ({number(count)})" for why, count in reasons.items() if count)
    who = f"{number(silent)} of {plural(valid, 'valid rollout')} have no" if spoke else "no rollout has a"
    return Finding(rule="teacher silence", text=f"{who} teacher's word: {told}", warning=True)


def agreement(largest: float) -> Finding | None:
    """Teachers say what the policy says: there is nothing to learn from them."""
    if largest >= NOTHING_SAID:
        return None
    text = (
        f"teachers say what the policy says: |d| is at most {number(largest)} nats on 99 % of tokens, which "
        f"teaches nothing"
    )
    return Finding(rule="teacher agreement", text=text, warning=True)


def clipping(metrics: Metrics) -> Finding | None:
    """The clip changes d of more than a fifth of the tokens."""
    share = _value(metrics, _CLIPPED)
    if share <= MUCH_CLIPPED:
        return None
    median = _value(metrics, "teacher/gap_p50")
    text = (
        f"distill.loss.clip changes d of {percent(share)} of tokens, whose median |d| is {number(median)} "
        f"nats: how far away the teacher is counts no more there; raise it"
    )
    return Finding(rule="teacher clip", text=text, warning=True)


def concentration(metrics: Metrics) -> Finding | None:
    """One token in a hundred has more than half of all |d|, and no clip bounds it."""
    share = _value(metrics, CONCENTRATION)
    if share <= FEW_DECIDE or _value(metrics, _CLIPPED):
        return None
    text = (
        f"one token in a hundred has {percent(share)} of all |d|, up to {number(_value(metrics, _GAP))} nats "
        f"and more: few tokens decide; distill.loss.clip would bound them"
    )
    return Finding(rule="teacher concentration", text=text, warning=False)


def template(split: Mapping[str, Mean], *, who: str = "the teachers") -> Finding:
    """Says how far `who` are from the policy at the start, per token, and on which kinds of tokens."""
    sums = {kind: mean.numerator for kind, mean in split.items() if mean.denominator}
    total, tokens = math.fsum(sums.values()), sum(mean.denominator for mean in split.values())
    counts = {kind: plural(round(split[kind].denominator), "token") for kind in sums}
    parts = ", ".join(f"{_NAMES[kind]} {number(split[kind].value or 0.0)} ({counts[kind]})" for kind in sums)
    text = f"KL of the policy to {who} at the start: {number(total / tokens)} nats per token; {parts}"
    beside = total - sums.get("content", 0.0)
    disagrees = total > LITTLE_KL * tokens and beside > MUCH_TEMPLATE * total
    if disagrees:
        text += (
            f". {percent(min(1.0, beside / total))} of it is on tokens that are no content: the teacher "
            f"disagrees about the template, not about what is said; take one with the policy's template"
        )
    return Finding(rule="teacher template", text=text, warning=disagrees)


def _value(metrics: Mapping[str, Metric], name: str) -> float:
    return metrics.get(name, Sum(0.0)).value or 0.0


# --- over the steps of a run --------------------------------------------------------------------

MORE_TRUNCATED = 0.1  # by which the share of truncated rollouts rises


def distance(history: Sequence[Mapping[str, float]], *, least: int) -> Finding | None:
    """Says how the KL to the teachers moved from the first to the last quarter of at least `least` steps."""
    kl = [figures[KL] for figures in history if KL in figures]
    if len(kl) < least:
        return None
    start, end = _ends(kl)
    before, after = statistics.fmean(start), statistics.fmean(end)
    noise = t_quantile(len(start) - 1) * math.sqrt(
        (statistics.variance(start) + statistics.variance(end)) / len(start)
    )
    figures = f"KL to the teachers went from {number(before)} to {number(after)} nats per token"
    if after >= before - noise and before > LITTLE_KL:
        text = (
            f"{figures}: it did not fall beyond the spread between steps; raise optimizer.learning_rate or "
            f"distill.coef, or sample more"
        )
        return Finding(rule="teacher distance", text=text, warning=True)
    return Finding(rule="teacher distance", text=figures, warning=False)


def inflation(history: Sequence[Mapping[str, float]], *, least: int) -> Finding | None:
    """Warns when rollouts are cut off more often while the KL falls (StableOPD, arXiv 2604.08527).

    A teacher goes on repeating what is repeated, and so praises it.
    """
    known = [figures for figures in history if KL in figures and "truncated" in figures]
    if len(known) < least:
        return None
    (kl_before, kl_after), (before, after) = (
        [statistics.fmean(end) for end in _ends([figures[name] for figures in known])]
        for name in (KL, "truncated")
    )
    if after < before + MORE_TRUNCATED or kl_after >= kl_before:
        return None
    text = (
        f"truncated rollouts went from {percent(before)} to {percent(after)} while the KL to the teachers "
        f"fell: they get longer, not better, as when a teacher praises repetition; let the task count "
        f"(distill.task=true), or pull towards the start (kl.coef)"
    )
    return Finding(rule="teacher truncation", text=text, warning=True)


def _ends(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    window = max(3, len(values) // 4)
    return values[:window], values[-window:]
