"""Pass rates in words and as a histogram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from turnpoint.reports.text import percent, plural

_BARS = 40  # characters of the longest bar
_ROWS = 10  # parts that the range from never to always is cut into, at most


def histogram(rates: Sequence[float], *, samples: int, minimum: float, maximum: float) -> list[str]:
    """Returns one line per level of difficulty, never and always apart from all others.

    Between the two, rates are counted at the nearest tenth, or at the nearest possible rate where there are
    fewer than ten samples. A "*" marks levels of which at least one problem lies within the range.

    >>> histogram([0.0, 0.0, 0.5, 1.0], samples=2, minimum=0.1, maximum=0.9)[0]
    'never      2  50 %  ########################################'
    """
    steps = min(samples, _ROWS)
    counts = Counter(_level(rate, steps) for rate in rates)
    inside = {_level(rate, steps) for rate in rates if minimum <= rate <= maximum}
    widest, width = max(counts.values(), default=1), len(f"{max(counts.values(), default=0):,}")
    lines: list[str] = []
    for level in range(steps + 1):
        name = "never" if level == 0 else "always" if level == steps else percent(level / steps)
        count = counts[level]
        share = percent(count / len(rates)) if rates else "0 %"
        bar = "#" * -(-_BARS * count // widest)
        mark = "*" if level in inside else " "
        lines.append(f"{name:<6} {mark} {count:>{width + 2},} {share:>5}  {bar}".rstrip())
    return lines


def _level(rate: float, steps: int) -> int:
    if rate in (0.0, 1.0):
        return steps if rate else 0
    return min(max(round(rate * steps), 1), max(steps - 1, 1))


def spread(rates: Sequence[float]) -> str:
    """Says how many problems are of no use to learn from.

    >>> spread([0.0, 0.0, 0.5, 1.0])
    '50 % never solved, 25 % always, 25 % in between'
    """
    never, always = (sum(rate == end for rate in rates) / len(rates) for end in (0.0, 1.0))
    between = sum(0 < rate < 1 for rate in rates) / len(rates)
    return f"{percent(never)} never solved, {percent(always)} always, {percent(between)} in between"


def wider(rates: Iterable[float], *, minimum: float, maximum: float) -> str:
    """Says which range would keep something of `rates`, none of which lies between the two."""
    rates = list(rates)
    useful = [rate for rate in rates if 0 < rate < 1]
    if not useful:
        return "no problem is solved sometimes: more samples, easier problems or a better policy are needed"
    nearest = min(useful, key=lambda rate: max(minimum - rate, rate - maximum))
    low, high = min(minimum, nearest), max(maximum, nearest)
    kept = sum(low <= rate <= high for rate in rates)
    return f"--min {low:.3g} --max {high:.3g} would keep {plural(kept, 'problem')}"
