"""How groups fork, in words."""

from __future__ import annotations

from turnpoint.config import (
    BranchingConfig,
    EntropyRuleConfig,
    FeedbackSource,
    HindsightRuleConfig,
    RandomRuleConfig,
    ReflectionSource,
    SiblingSource,
    SourceConfig,
    StepsRuleConfig,
    SurprisalRuleConfig,
)
from turnpoint.reports.text import number, percent, plural


def branching_lines(shape: BranchingConfig) -> list[str]:
    """Returns the shape of a group, and the rule that says where a root forks."""
    shares = " + ".join(map(str, shape.continuations))
    points = plural(len(shape.continuations), "point")
    order = "; forks wait for all verdicts of a step" if shape.deterministic else ""
    lines = [
        f"a group = {plural(shape.roots, 'root')} x (1 + {shares}): each root forks at {points}, at least "
        f"{plural(shape.min_gap, 'token')} apart{order}",
        f"forks {_rule(shape)}",
    ]
    source = shape.rule.source if isinstance(shape.rule, HindsightRuleConfig) else None
    if isinstance(source, ReflectionSource) and source.gate is not None:
        lines.append(
            f"entropy decides where a reflection contradicts the verifier, and while fewer than "
            f"{percent(source.gate.agreement)} of them agree with it"
        )
    return lines


def _rule(shape: BranchingConfig) -> str:
    match shape.rule:
        case HindsightRuleConfig(direction=direction, weigh_alternatives=weighed) as rule:
            change = {
                "absolute": "changes most",
                "signed": "falls most",
                "decrease": "falls, where it falls most",
            }[direction]
            weight = ", times the probability of other tokens" if weighed else ""
            return f"where a token's log-probability {change} {_told(rule.source)}{weight}"
        case EntropyRuleConfig():
            return "where the next-token law has most entropy"
        case SurprisalRuleConfig():
            return "at the least likely tokens"
        case StepsRuleConfig(max_tokens=most):
            return f"at steps that the policy names in at most {plural(most, 'token')}"
        case RandomRuleConfig():
            return "anywhere (the control)"


def _told(source: SourceConfig) -> str:
    match source:
        case ReflectionSource(max_tokens=most):
            return f"under the record and a reflection of at most {number(most)} tokens"
        case FeedbackSource():
            return "under the verifier's record"
        case SiblingSource():
            return "under a solution of a sibling"
