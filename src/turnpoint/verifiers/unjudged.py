"""No judge at all: for runs in which a teacher alone says what tokens deserve."""

from __future__ import annotations

from turnpoint.types import Task, Verdict

UNJUDGED = Verdict.scored(0.0, reason="nobody judges")


class Unjudged:
    """Every completion is valid and earns 0, which teaches nothing; there is no gold answer to check."""

    async def verify(self, task: Task, completion: str) -> Verdict:
        """Returns 0."""
        return UNJUDGED

    async def self_check(self, task: Task) -> Verdict:
        """Returns 0, valid."""
        return UNJUDGED

    def __enter__(self) -> Unjudged:
        return self

    def __exit__(self, *exception: object) -> None:
        """Has nothing to close."""
