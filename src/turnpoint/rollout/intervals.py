"""95 % confidence intervals for scores over problems: plain, and with several samples per problem.

Samples of one problem resemble each other, so 64 problems x 4 samples say less than 256 problems would.
Each problem is one cluster; the standard error is taken between problems (Miller, arXiv 2411.00640). The
intervals cover the choice of problems and samples, not that of training seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]

_Z = 1.959963984540054  # the 0.975 quantile of the standard normal


def wilson_interval(share: float, count: float) -> Interval:
    """Returns Wilson's (1927) interval for a `share` of `count` independent trials.

        (p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)

    Stays inside [0, 1] and keeps a width at 0 and 1. `count` may be fractional (an effective size).
    Raises ValueError without trials.

    >>> [round(end, 4) for end in wilson_interval(0.5, 10)]
    [0.2366, 0.7634]
    """
    if count <= 0:
        raise ValueError(f"an interval needs trials, got {count}")
    shift = _Z**2 / count
    centre = share + shift / 2
    half = _Z * math.sqrt(share * (1 - share) / count + shift / (4 * count))
    low, high = (centre - half) / (1 + shift), (centre + half) / (1 + shift)
    return min(share, max(0.0, low)), max(share, min(1.0, high))  # rounding can leave the ends 0 and 1


def clustered_interval(problems: Sequence[Sequence[float]]) -> Interval:
    """Returns the interval of a share, the mean over `problems` of the mean of each one's 0/1 outcomes.

    With C problems of n_c outcomes and means m_c, and p the mean of the m_c, the variance between problems
    gives the number of independent outcomes that would be as certain, and Wilson's interval is taken at
    that number. It is never more than if all outcomes were independent, N:

        SE^2 = sum_c (m_c - p)^2 / C^2        N = C^2 / sum_c 1/n_c        n_eff = min(N, p (1 - p) / SE^2)

    When all outcomes are equal (p = 0 or 1) nothing is known about their likeness and n_eff = C. With one
    outcome per problem this is `wilson_interval`. Raises ValueError without problems or for an empty one.

    >>> clustered_interval([[1, 1], [0, 0]]) == wilson_interval(0.5, 2)
    True
    """
    means = [statistics.fmean(outcomes) for outcomes in problems]
    if not means:
        raise ValueError("an interval needs problems, got none")
    share, problem_count = statistics.fmean(means), len(means)
    spread = math.fsum((mean - share) ** 2 for mean in means) / problem_count**2
    if share in (0, 1):
        return wilson_interval(share, problem_count)
    most = problem_count**2 / math.fsum(1 / len(outcomes) for outcomes in problems)
    effective = min(most, share * (1 - share) / spread) if spread else most
    return wilson_interval(share, effective)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Returns mean -+ t s / sqrt(n) over independent `values`, one per problem; None below two values.

    For scores that are no shares: it can leave the range of the score.

    >>> [round(end, 2) for end in mean_interval([0.0, 1.0, 2.0, 3.0])]
    [-0.55, 3.55]
    """
    if len(values) < 2:
        return None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = t_quantile(len(values) - 1) * error
    return mean - half, mean + half


def t_quantile(freedom: int) -> float:
    """Returns the 0.975 quantile of Student's t; Abramowitz and Stegun 26.7.5, to 0.12 %."""
    z, n = _Z, freedom
    if n <= 2:  # the series is poor here, and the quantiles have closed forms
        return math.tan(0.475 * math.pi) if n == 1 else 0.95 * math.sqrt(2 / (1 - 0.95**2))
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
