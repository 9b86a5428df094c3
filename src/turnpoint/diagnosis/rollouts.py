"""What a few sampled rollouts say: whether they stop, differ in reward, and can be judged."""

from __future__ import annotations

import statistics
from collections import Counter

from turnpoint.diagnosis.checks import Check, failed, ok, warning
from turnpoint.diagnosis.sampling import Sample
from turnpoint.reports.findings import MUCH_TRUNCATION, invalid_text
from turnpoint.reports.rollout_metrics import completion_length, has_signal, is_truncated
from turnpoint.reports.text import number, percent, plural


def check_endings(sample: Sample) -> Check:
    """How many rollouts stop by themselves within sampling.max_new_tokens."""
    pairs = [(group, member) for group in sample.groups for member in group.members]
    finished = [completion_length(group, member) for group, member in pairs if not is_truncated(member)]
    cut_off = 1 - len(finished) / len(pairs)
    text = f"{percent(1 - cut_off)} of {plural(len(pairs), 'rollout')} stop by themselves"
    if finished:
        text += f", after {statistics.median(finished):.0f} tokens in the median"
    if not sample.whole:
        return warning("endings", f"{text}; only {number(sample.limit)} tokens each were sampled, for time")
    if cut_off >= MUCH_TRUNCATION:
        why = "" if finished else ", or look for the stop token the model does not give"
        return warning("endings", f"{text}, {percent(cut_off)} hit sampling.max_new_tokens; raise it{why}")
    return ok("endings", text)


def check_signal(sample: Sample, *, taught: bool = False) -> Check:
    """How many groups have rewards that differ, and how many rollouts cannot be judged.

    Where none has, there is nothing to learn, unless the policy is `taught` by something else, too.
    """
    verdicts = [member.verdict for group in sample.groups for member in group.members]
    reasons = Counter(verdict.reason for verdict in verdicts if not verdict.valid)
    judged = invalid_text(reasons, total=len(verdicts), noun="rollouts")
    if reasons.total() == len(verdicts):
        return failed("signal", f"{judged}; nothing can be trained on")
    if not sample.whole:
        return warning(
            "signal", f"not known: only {number(sample.limit)} tokens of each rollout were sampled, for time"
        )
    count, with_signal = len(sample.groups), sum(map(has_signal, sample.groups))
    rewards = [verdict.reward for verdict in verdicts if verdict.reward is not None]
    text = (
        f"rewards differ within {with_signal} of {plural(count, 'group')} of {len(verdicts) // count}; "
        f"mean reward {number(round(statistics.fmean(rewards), 3))}; {judged or 'none invalid'}"
    )
    if not (with_signal or taught):
        return warning("signal", f"{text}: nothing to learn from these prompts")
    return warning("signal", text) if reasons else ok("signal", text)


def share_with_signal(sample: Sample) -> float:
    """Returns the share of groups that will train; 1 where that is not known."""
    return sum(map(has_signal, sample.groups)) / len(sample.groups) if sample.whole else 1.0
