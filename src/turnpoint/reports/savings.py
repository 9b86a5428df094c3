"""What the three methods did for a run, summed over its steps: tokens and passes saved, words had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnpoint.reports.branching_metrics import KEPT
from turnpoint.reports.draft_metrics import ACCEPT_LENGTH, ACCEPTANCE, DRAFTED
from turnpoint.reports.finding import Finding
from turnpoint.reports.text import number, percent
from turnpoint.teachers.metrics import TOKENS

History = Sequence[Mapping[str, float]]


def savings(history: History) -> list[Finding]:
    """Returns a sentence for each method that was at work."""
    found = [_branching(history), _drafts(history), _teachers(history)]
    return [it for it in found if it is not None]


def _branching(history: History) -> Finding | None:
    kept = _sum(history, KEPT)
    if not kept:
        return None
    reflected = _sum(history, "tokens/reflection")
    cost = f"; reflections took {number(reflected)} more" if reflected else ""
    share = percent(kept / (kept + _sampled(history)))
    return Finding(
        rule="saved_by_branching",
        warning=False,
        text=f"branching: continuations took over {number(kept)} tokens of their roots, which is {share} of "
        f"what as many whole rollouts would have sampled{cost}",
    )


def _drafts(history: History) -> Finding | None:
    """Rounds follow from tokens a round, (accepted + rounds) / rounds; a step of none has no such figure."""
    drafted = _sum(history, DRAFTED)
    if not drafted:
        return None
    accepted = [it.get(ACCEPTANCE, 0.0) * it.get(DRAFTED, 0.0) for it in history]
    pairs = [(tokens, it[ACCEPT_LENGTH]) for tokens, it in zip(accepted, history, strict=True) if tokens]
    rounds = sum(tokens / (length - 1) for tokens, length in pairs)
    total = sum(tokens for tokens, _ in pairs)
    each = f", {1 + total / rounds:.2f} tokens in a pass that verifies" if rounds else ""
    return Finding(
        rule="saved_by_drafts",
        warning=False,
        text=f"drafts: {number(round(total))} of {number(drafted)} were accepted, each of them a token that "
        f"took no pass of its own{each}",
    )


def _teachers(history: History) -> Finding | None:
    said = _sum(history, TOKENS)
    sampled = _sampled(history)
    if not said or not sampled:
        return None
    return Finding(
        rule="had_from_teachers",
        warning=False,
        text=f"teachers: a word of their own on {number(said)} tokens, {percent(said / sampled)} of those "
        f"sampled, where rewards have one for a rollout",
    )


def _sampled(history: History) -> float:
    """Returns the tokens of rollouts."""
    return _sum(history, "tokens/root") + _sum(history, "tokens/suffix")


def _sum(history: History, name: str) -> float:
    return sum(it.get(name, 0.0) for it in history)
