"""What the engine counts."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What the engine has done so far; subtract two to get what lies between them."""

    steps: int = 0
    seconds: float = 0.0  # in steps; of several workers together
    processor: float = 0.0  # seconds of processor time of the process meanwhile, all its threads
    prefilled: int = 0  # prefix tokens through the network
    decoded: int = 0  # sampled tokens through the network
    cached: int = 0  # prefix tokens read from the prefix cache instead
    sampled: int = 0  # tokens drawn
    rounds: int = 0  # of speculation, one per row and step
    drafted: int = 0  # tokens proposed in them
    accepted: int = 0  # tokens that texts gained by them, beside the one of any pass
    scored: int = 0  # given tokens scored

    def __add__(self, other: EngineStats) -> EngineStats:
        names = [field.name for field in fields(self)]
        return EngineStats(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def __sub__(self, other: EngineStats) -> EngineStats:
        names = [field.name for field in fields(self)]
        return EngineStats(**{name: getattr(self, name) - getattr(other, name) for name in names})
