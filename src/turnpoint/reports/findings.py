"""What a step's figures say in words. Each rule is a pure function that returns one sentence or None.

The loss of a policy gradient says nothing about learning; these sentences do. A rule states what was
measured, what it means and, where there is one, the way out. It never claims more than its figures.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnpoint.metrics import Metrics
from turnpoint.reports.finding import Finding as Finding
from turnpoint.reports.rollout_metrics import completion_length, has_signal, is_truncated, valid_rewards
from turnpoint.reports.teacher_findings import teacher_findings
from turnpoint.reports.text import cut, number, percent, plural
from turnpoint.types import Group

LITTLE_SIGNAL = 0.75  # share of groups without signal from which it is said
MUCH_TRUNCATION = 0.2  # share of rollouts
_NAMED_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLimits:
    """What of the recipe the rules compare with."""

    max_new_tokens: int
    clip_low: float
    clip_high: float
    mismatch_tolerance: float  # nats per token
    updates: int = 1  # per batch of rollouts
    beside: tuple[str, ...] = ()  # what teaches beside rewards, in words
    rewards_teach: bool = True

    @property
    def signal(self) -> str:
        """What groups whose rewards differ are to this run, in words."""
        if not self.rewards_teach:
            return "which teach nothing here: the teacher does"
        return (
            f"which teach beside {' and '.join(self.beside)}" if self.beside else "the only ones that teach"
        )


def step_findings(
    groups: Sequence[Group], metrics: Metrics, *, limits: FindingLimits, first: bool
) -> tuple[Finding, ...]:
    """Returns what is to be said about a step, in order of the rules below.

    On the `first` step of a run the checks of engine against trainer are reported even when all is well;
    later only when it is not.
    """
    return tuple(_step_findings(groups, metrics, limits, first))


def _step_findings(
    groups: Sequence[Group], metrics: Metrics, limits: FindingLimits, first: bool
) -> Iterator[Finding]:
    for found in (
        signal(groups, beside=limits.beside) if limits.rewards_teach else None,
        truncation(groups, max_new_tokens=limits.max_new_tokens),
        invalid(groups),
        set_aside(groups),
    ):
        if found is not None:
            yield found
    values = {name: metric.value for name, metric in metrics.items()}
    gap, largest = values.get(MISMATCH), values.get(RATIO_DEVIATION)
    checks: list[Finding] = []
    if gap is not None:
        checks.append(mismatch(gap, tolerance=limits.mismatch_tolerance))
    if largest is not None and limits.updates == 1:
        bounds = {"clip_low": limits.clip_low, "clip_high": limits.clip_high}
        checks.append(ratio(largest, clipped=values.get(CLIP_FRACTION), **bounds))
    if largest is not None and limits.updates > 1:
        checks.append(drift(largest, clipped=values.get(CLIP_FRACTION), updates=limits.updates))
    for found in (shortage(values.get(MISSING)), correction(values.get(SAMPLE_SIZE))):
        if found is not None:
            yield found
    yield from teacher_findings(groups, metrics, first=first)
    yield from (check for check in checks if first or check.warning)


# --- rollouts -----------------------------------------------------------------------------------


def signal(groups: Sequence[Group], *, beside: Sequence[str] = ()) -> Finding | None:
    """No or little learning signal: all, or at least 75 % of the groups have equal rewards.

    An advantage is a reward compared with its group; equal rewards give zero. A group with fewer than two
    valid rewards has no signal either. `beside` names what a step still learns then. When the rewards are
    equal although parts of them are not, those parts are named: they may cancel each other.
    """
    flat = [group for group in groups if not has_signal(group)]
    if len(flat) < LITTLE_SIGNAL * len(groups) or not groups:
        return None
    levels = Counter(_level(group) for group in flat)
    none = len(flat) == len(groups)
    if levels.keys() == {_NO_REWARD}:
        what = "no rollout has a valid reward"
    elif none and len(levels) == 1:
        what = f"every group has equal rewards ({next(iter(levels))}){_hint(levels)}"
    else:
        listed = ", ".join(f"{count} {level}" for level, count in levels.most_common(_NAMED_REASONS))
        more = ", ..." if len(levels) > _NAMED_REASONS else ""
        who = "every group has" if none else f"{len(flat)} of {len(groups)} groups have"
        what = f"{who} equal rewards ({listed}{more})"
    parts = sorted({name for group in flat for name in _varying_parts(group)})
    cancel = f"; yet these parts of them differ: {', '.join(parts)}" if parts else ""
    beyond = f" beyond {' and '.join(beside)}" if beside else ""
    text = f"{'no' if none else 'little'} learning signal{beyond}: {what}{cancel}"
    return Finding(rule="signal", text=text, warning=none)


_NO_REWARD = "without valid rewards"


def _level(group: Group) -> str:
    rewards = valid_rewards(group)
    return f"all {round(float(rewards[0]), 3)}" if rewards else _NO_REWARD


def _hint(levels: Counter[str]) -> str:
    if "all 0.0" in levels:
        return ": too hard for this policy, or answers in a form the verifier does not find"
    return ": nothing left to learn on these problems" if "all 1.0" in levels else ""


def _varying_parts(group: Group) -> set[str]:
    valid = [member.verdict.parts for member in group.members if member.verdict.valid]
    names = {name for parts in valid for name in parts}
    return {name for name in names if len({parts.get(name) for parts in valid}) > 1}


def truncation(groups: Sequence[Group], *, max_new_tokens: int) -> Finding | None:
    """At least 20 % of the rollouts ran into the length limit; says how long the finished ones are."""
    pairs = [(group, member) for group in groups for member in group.members]
    finished = [completion_length(group, member) for group, member in pairs if not is_truncated(member)]
    cut_off = len(pairs) - len(finished)
    if not pairs or cut_off < MUCH_TRUNCATION * len(pairs):
        return None
    if finished:
        known = f"; finished ones have median length {statistics.median(finished):.0f}"
        way_out = "raise sampling.max_new_tokens"
    else:
        known = " and none finished"
        way_out = "raise sampling.max_new_tokens, or look for the stop token the model does not give"
    share = percent(cut_off / len(pairs))
    text = f"{share} of rollouts hit the limit of {max_new_tokens} tokens{known}: {way_out}"
    return Finding(rule="truncation", text=text, warning=True)


def invalid(groups: Sequence[Group]) -> Finding | None:
    """Some rollouts have no valid reward: the share, and the commonest reasons with their counts."""
    verdicts = [member.verdict for group in groups for member in group.members]
    reasons = Counter(verdict.reason for verdict in verdicts if not verdict.valid)
    text = invalid_text(reasons, total=len(verdicts), noun="rollouts")
    return None if text is None else Finding(rule="invalid", text=f"{text}; not trained on", warning=True)


def set_aside(groups: Sequence[Group]) -> Finding | None:
    """At least 20 % of the roots did not fork by the recipe's rule: the commonest reasons, counted."""
    insights = [it.insight for group in groups for it in group.members if it.insight is not None]
    reasons = Counter(insight.set_aside for insight in insights if insight.set_aside)
    if reasons.total() < MUCH_SET_ASIDE * len(insights) or not insights:
        return None
    named = [f"{cut(reason, 60)} ({count})" for reason, count in reasons.most_common(_NAMED_REASONS)]
    text = f"{percent(reasons.total() / len(insights))} of roots forked by another rule or not at all: "
    return Finding(rule="branching", text=text + ", ".join(named), warning=True)


MUCH_SET_ASIDE = 0.2  # share of examined roots


def invalid_text(reasons: Counter[str], *, total: int, noun: str) -> str | None:
    """Returns "31 % of rollouts invalid: REASON (12), ..." or None when there is no reason."""
    if not reasons:
        return None
    named = [f"{cut(reason, 60)} ({count})" for reason, count in reasons.most_common(_NAMED_REASONS)]
    if len(reasons) > _NAMED_REASONS:
        named.append(plural(len(reasons) - _NAMED_REASONS, "other reason"))
    return f"{percent(reasons.total() / total)} of {noun} invalid: {', '.join(named)}"


# --- engine against trainer ---------------------------------------------------------------------

MISMATCH = "mismatch"  # mean |engine - trainer| log-probability of sampled tokens, nats
CLIP_FRACTION = "clip_fraction"  # of trained tokens whose gradient a bound removed
RATIO_DEVIATION = "ratio_deviation"  # largest |ratio - 1| of the step's tokens


MUCH_ROUNDING = 0.05  # share of trained tokens that rounding alone pushes beyond the clip


def ratio(largest: float, *, clipped: float | None, clip_low: float, clip_high: float) -> Finding:
    """What the clip does although every step is on-policy; `clipped` is the share of tokens it acts on.

    With one update per batch the ratio is 1 up to what engine and trainer round differently; in bfloat16
    that can be beyond the clip for rare, unlikely tokens, whose gradient is then cut. Whether the two
    disagree as a whole is `mismatch`'s to say.
    """
    measured = f"largest |ratio - 1| = {number(largest)}"
    bounds = f"the clip ({clip_low:g}/{clip_high:g})"
    if clip_low >= 1:  # importance weights are capped, none is clipped
        bounds = f"the cap of {1 + clip_high:g} on importance weights"
    if not clipped:
        return Finding(rule="ratio", text=f"on-policy: {measured}; {bounds} cuts nothing", warning=False)
    text = f"on-policy up to rounding: {measured}; {bounds} cuts {percent(clipped)} of tokens"
    much = clipped > MUCH_ROUNDING
    way_out = "; model.dtype=float32 rounds less" if much else ""
    return Finding(rule="ratio", text=text + way_out, warning=much)


MUCH_CLIPPED = 0.3  # share of trained tokens


def drift(largest: float, *, clipped: float | None, updates: int) -> Finding:
    """How far the updates of one batch lead away from what sampled it."""
    share = 0.0 if clipped is None else clipped
    text = (
        f"{updates} updates per batch: largest |ratio - 1| = {number(largest)}, the clip took the gradient "
        f"of {percent(share)} of tokens"
    )
    much = share > MUCH_CLIPPED
    way_out = ": fewer updates per batch or a lower learning rate would waste less" if much else ""
    return Finding(rule="ratio", text=text + way_out, warning=much)


SAMPLE_SIZE = "effective_sample_size"  # of the importance weights, as a share of the tokens
FEW_EFFECTIVE = 0.5


def correction(share: float | None) -> Finding | None:
    """The importance weights are so uneven that less than half of the tokens count."""
    if share is None or share >= FEW_EFFECTIVE:
        return None
    text = (
        f"importance weights leave an effective {percent(share)} of the tokens: engine and trainer differ "
        f"too much; model.dtype=float32, or correction.level=token"
    )
    return Finding(rule="correction", text=text, warning=True)


MISSING = "refill/missing"  # groups that refilling could not find


def shortage(missing: float | None) -> Finding | None:
    """Refilling fell short: the step trains on fewer groups than asked for."""
    if not missing:
        return None
    text = (
        f"the step is {plural(int(missing), 'group')} short: too few groups have rewards that differ; raise "
        f"rollout.refill.rounds, or choose problems by turnpoint filter"
    )
    return Finding(rule="refill", text=text, warning=True)


def mismatch(gap: float, *, tolerance: float) -> Finding:
    """Whether engine and trainer give sampled tokens the same log-probability, within the tolerance."""
    agree = gap <= tolerance
    verb, than = ("agree", "within") if agree else ("disagree", "above")
    text = (
        f"engine and trainer {verb}: mean |difference| of log-probabilities {number(gap)} nats per token, "
        f"{than} the tolerance of {tolerance:g}"
    )
    return Finding(rule="mismatch", text=text, warning=not agree)
