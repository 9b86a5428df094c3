"""pass@k: how likely one of k answers is right, without bias from n >= k of them (Chen et al., 2107.03374).

1 - C(n - c, k) / C(n, k)      n answers, c of them right; mean over problems
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.rollout.intervals import Interval, mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """Over the problems that have k judged answers."""

    k: int
    share: float
    interval: Interval | None  # 95 %, `mean_interval` over problems
    problems: int


def pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> PassAtK | None:
    """Returns pass@k of problems with (n answers, c right ones); None where none of them has k answers.

    >>> found = pass_at_k([(4, 1), (4, 4), (1, 1)], 2)
    >>> found.share, found.problems
    (0.75, 2)
    """
    shares = [1 - math.comb(n - c, k) / math.comb(n, k) for n, c in counts if n >= k]
    if not shares:
        return None
    interval = mean_interval(shares)
    if interval is not None:
        interval = max(0.0, interval[0]), min(1.0, interval[1])
    return PassAtK(k=k, share=statistics.fmean(shares), interval=interval, problems=len(shares))


def powers_of_two(most: int) -> list[int]:
    """Returns the k that are told of up to `most` samples: 2, 4, ... and `most` itself; 1 is avg@n.

    >>> powers_of_two(10)
    [2, 4, 8, 10]
    """
    powers = [2**power for power in range(1, most.bit_length()) if 2**power < most]
    return [*powers, most] if most > 1 else []
