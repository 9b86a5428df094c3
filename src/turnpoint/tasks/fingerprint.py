"""What the problems of a run are known by: a run that goes on must go on with the same ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.tasks.dataset import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """How many problems, and SHA-256 (hex) over what they say, in order."""

    count: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprints:
    """The problems of a run by what they are for; a position in their order means nothing without them."""

    examples: Fingerprint  # shown in few-shot prompts
    train: Fingerprint
    evaluation: Fingerprint

    @staticmethod
    def of(examples: Sequence[tuple[str, str]], train: Dataset, evaluation: Dataset) -> Fingerprints:
        """Returns the fingerprints of problems as they will be used."""
        said = json.dumps([list(example) for example in examples]).encode("ascii")
        return Fingerprints(
            examples=Fingerprint(count=len(examples), sha256=hashlib.sha256(said).hexdigest()),
            train=Fingerprint(count=len(train.tasks), sha256=train.fingerprint),
            evaluation=Fingerprint(count=len(evaluation.tasks), sha256=evaluation.fingerprint),
        )

    def change(self, now: Fingerprints) -> str:
        """Returns in one line what is different `now`; empty when nothing is."""
        pairs = {
            "few-shot examples": (self.examples, now.examples),
            "problems to train on": (self.train, now.train),
            "problems to evaluate": (self.evaluation, now.evaluation),
        }
        changes = [_change(name, then, today) for name, (then, today) in pairs.items() if then != today]
        return "; ".join(changes)


def _change(name: str, then: Fingerprint, now: Fingerprint) -> str:
    if then.count != now.count:
        return f"{then.count:,} {name} then, {now.count:,} now"
    return f"{now.count:,} {name} as then, but other content or another order"
