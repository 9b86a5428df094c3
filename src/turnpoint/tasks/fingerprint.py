"""What the problems of a run are known by: a run that goes on must go on with the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turnpoint.tasks.dataset import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """How many there are of something, and SHA-256 (hex) over what they say, in order.

    A position in their order means nothing without them.
    """

    count: int
    sha256: str

    @staticmethod
    def of(pieces: Iterable[bytes]) -> Fingerprint:
        """Returns the fingerprint of `pieces`."""
        digest, count = hashlib.sha256(), 0
        for piece in pieces:
            digest.update(len(piece).to_bytes(8, "big"))
            digest.update(piece)
            count += 1
        return Fingerprint(count=count, sha256=digest.hexdigest())

    @staticmethod
    def of_tasks(dataset: Dataset) -> Fingerprint:
        """Returns the fingerprint of the tasks of `dataset`."""
        return Fingerprint(count=len(dataset.tasks), sha256=dataset.fingerprint)


def change(then: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint]) -> str:
    """Returns in one line which of the named things are not as they were `then`; empty when all are."""
    none = Fingerprint.of(())
    pairs = {name: (then.get(name, none), now.get(name, none)) for name in {**then, **now}}
    return "; ".join(_change(name, old, new) for name, (old, new) in pairs.items() if old != new)


def _change(name: str, then: Fingerprint, now: Fingerprint) -> str:
    if then.count != now.count:
        return f"{then.count:,} {name} then, {now.count:,} now"
    return f"{now.count:,} {name} as then, but other content or another order"
