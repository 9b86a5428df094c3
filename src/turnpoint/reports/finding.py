"""A sentence about what was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One sentence and the rule that made it."""

    rule: str  # stable, for filters: "signal", "truncation", "invalid", "ratio", "mismatch", ...
    text: str  # one line
    warning: bool  # something should be done about it
