"""The fields of an evaluation's line that are read again; its figures follow from them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from turnpoint._lines import Count, Finite, Number, Record
from turnpoint.types import FinishReason, Verdict


class AttemptRecord(Record):
    """One answer and what it earned."""

    reward: Finite | None
    valid: bool
    reason: str
    feedback: str
    parts: dict[str, Number]
    finish: Annotated[FinishReason, Strict(False)]
    tokens: Count
    text: str

    def verdict(self) -> Verdict:
        """Returns the verdict; raises ValueError when its fields contradict each other."""
        return Verdict(
            reward=self.reward,
            valid=self.valid,
            reason=self.reason,
            feedback=self.feedback,
            parts=self.parts,
        )


class OutcomeRecord(Record):
    """All attempts at one problem."""

    task: str
    greedy: AttemptRecord
    sampled: list[AttemptRecord]


class MajorityRecord(Record):
    """The commonest gold answer."""

    answer: str
    accuracy: Annotated[Finite, Field(ge=0, le=1)]


class EvaluationRecord(Record):
    """The law that the outcomes were drawn from, and the outcomes."""

    samples: Count
    temperature: Finite
    top_k: Count = 0  # lines of earlier versions have neither
    top_p: Finite = 1.0
    max_new_tokens: Count
    seed: int
    seconds: Finite
    majority: MajorityRecord
    outcomes: Annotated[list[OutcomeRecord], Field(min_length=1)]
