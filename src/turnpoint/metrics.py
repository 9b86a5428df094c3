"""Metrics as typed values that know their denominator; they never carry control flow.

Each reducer merges with its own kind: merging the parts of a step in any order and split gives the value
of the whole step. `value` is None when nothing was counted, so that an absent quantity is absent and not 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Sum:
    """A total.

    >>> Sum(2.0).merge(Sum(3.0)).value
    5.0
    """

    total: float

    def merge(self, other: Sum) -> Sum:
        """Returns the reducer of both."""
        return Sum(self.total + other.total)

    @property
    def value(self) -> float | None:
        """The total."""
        return self.total


@dataclass(frozen=True, slots=True)
class Mean:
    """A ratio of sums: a mean when the denominator counts items.

    >>> Mean.of([1.0, 2.0]).merge(Mean(6.0, 1.0)).value
    3.0
    """

    numerator: float
    denominator: float

    @staticmethod
    def of(values: Iterable[float]) -> Mean:
        """Returns the mean of `values`."""
        items = list(values)
        return Mean(math.fsum(items), len(items))

    def merge(self, other: Mean) -> Mean:
        """Returns the reducer of both."""
        return Mean(self.numerator + other.numerator, self.denominator + other.denominator)

    @property
    def value(self) -> float | None:
        """The ratio; None over nothing."""
        return self.numerator / self.denominator if self.denominator else None


Ratio = Mean  # the same arithmetic; the name says that the parts are sums of different things


@dataclass(frozen=True, slots=True)
class Max:
    """The largest value seen.

    >>> Max.of([]).merge(Max(2.0)).value
    2.0
    """

    largest: float = -math.inf

    @staticmethod
    def of(values: Iterable[float]) -> Max:
        """Returns the largest of `values`."""
        return Max(max(values, default=-math.inf))

    def merge(self, other: Max) -> Max:
        """Returns the reducer of both."""
        return Max(max(self.largest, other.largest))

    @property
    def value(self) -> float | None:
        """The largest; None over nothing."""
        return None if self.largest == -math.inf else self.largest


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of all values seen, linear between neighbours.

    >>> Quantile(0.5, (1.0, 9.0)).merge(Quantile(0.5, (2.0,))).value
    2.0
    """

    q: float
    values: tuple[float, ...]

    def merge(self, other: Quantile) -> Quantile:
        """Returns the reducer of both; raises ValueError for different quantiles."""
        if self.q != other.q:
            raise ValueError(f"cannot merge the {self.q} and {other.q} quantiles")
        return Quantile(self.q, self.values + other.values)

    @property
    def value(self) -> float | None:
        """The quantile; None over nothing."""
        return float(np.quantile(self.values, self.q)) if self.values else None


@dataclass(frozen=True, slots=True)
class EffectiveShare:
    """Kish's effective sample size of weights, as a share of their number: (sum w)^2 / (n sum w^2).

    1 when all weights are equal, 1/n when one outweighs all others, 0 when every weight is 0.

    >>> EffectiveShare.of([1.0, 1.0]).merge(EffectiveShare.of([0.0, 0.0])).value
    0.5
    """

    total: float
    squares: float
    count: int

    @staticmethod
    def of(weights: Iterable[float]) -> EffectiveShare:
        """Returns the reducer of `weights`, none of them negative."""
        items = list(weights)
        return EffectiveShare(math.fsum(items), math.fsum(weight * weight for weight in items), len(items))

    def merge(self, other: EffectiveShare) -> EffectiveShare:
        """Returns the reducer of both."""
        return EffectiveShare(
            self.total + other.total, self.squares + other.squares, self.count + other.count
        )

    @property
    def value(self) -> float | None:
        """The share, in [0, 1]; None over nothing."""
        if not self.count:
            return None
        return self.total**2 / (self.count * self.squares) if self.squares else 0.0


Metric: TypeAlias = Sum | Mean | Max | Quantile | EffectiveShare
Metrics: TypeAlias = Mapping[str, Metric]


def merge_metrics(parts: Iterable[Metrics]) -> dict[str, Metric]:
    """Returns all `parts` as one; raises TypeError when one name has two kinds."""
    merged: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            known = merged.get(name)
            if known is not None and type(known) is not type(metric):
                raise TypeError(f"metric {name!r} is both {type(known).__name__} and {type(metric).__name__}")
            merged[name] = metric if known is None else known.merge(metric)  # type: ignore[arg-type]
    return merged


def metric_values(metrics: Metrics) -> dict[str, float]:
    """Returns the values by name, without those over nothing."""
    return {name: metric.value for name, metric in metrics.items() if metric.value is not None}
