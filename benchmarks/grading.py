"""How many answers a second are graded: turnpoint beside math-verify called directly, on the same pairs.

    python -m benchmarks.grading

Prints JSON lines. "ordinary" answers are numbers and fractions as in GSM8K and MATH; "algebra" ones are
expressions that need a worker. math-verify runs in this process, without protection against hanging.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import math_verify

from benchmarks.common import emit, facts
from turnpoint.verifiers import MathVerifier

Pair = tuple[str, str]
_parse: Any = math_verify.parse  # untyped
_verify: Any = math_verify.verify


def ordinary(count: int, rng: random.Random) -> list[Pair]:
    """Returns pairs of a reference number and a response that ends in one, equal in half of the cases."""
    pairs: list[Pair] = []
    for index in range(count):
        value = Fraction(rng.randint(-9999, 9999), rng.choice([1, 1, 1, 2, 4, 5, 7, 12]))
        gold = (
            str(value.numerator)
            if value.denominator == 1
            else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        )
        said = value if index % 2 else value + rng.randint(1, 9)
        written = f"{said.numerator:,}" if said.denominator == 1 else f"{said.numerator}/{said.denominator}"
        pairs.append(
            (gold, "First we add what is given. " * 30 + rf"So the answer is $\boxed{{{written}}}$.")
        )
    return pairs


def algebra(count: int, rng: random.Random) -> list[Pair]:
    """Returns pairs of quadratics, factored and multiplied out, equal in half of the cases."""
    pairs: list[Pair] = []
    for index in range(count):
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        gold = f"(x+{a})(x+{b})"
        pairs.append((gold, rf"\boxed{{x^2+{a + b}x+{a * b + index % 2}}}"))
    return pairs


def direct(gold: str, response: str) -> bool:
    """Grades as most trainers do: math-verify's parse and verify, without a time limit."""
    reference = _parse(rf"\boxed{{{gold}}}", parsing_timeout=None)
    return _verify(reference, _parse(response, parsing_timeout=None), timeout_seconds=None)


def rate(grade: Callable[[str, str], Any], pairs: Sequence[Pair], threads: int) -> float:
    """Returns gradings a second from `threads` threads."""
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(grade, *pair) for pair in pairs]:
            future.result()
    return len(pairs) / (time.perf_counter() - start)


def main() -> None:
    """Measures and prints."""
    with MathVerifier(workers=2) as verifier:

        def ours(gold: str, response: str) -> bool:
            return verifier.grade(gold=gold, response=response).reward == 1.0

        ours("x+1", r"\boxed{1+x}")
        for name, make, count in (("ordinary", ordinary, 2000), ("algebra", algebra, 100)):
            pairs = make(count, random.Random(0))
            peer = rate(direct, pairs, 1)
            for threads in (1, 8):
                mine = rate(ours, pairs, threads)
                row = {
                    "benchmark": "grading",
                    "pairs": name,
                    "threads": threads,
                    "per_second": round(mine),
                    "math_verify_per_second": round(peer),
                }
                emit(**row, ratio=round(mine / peer, 2), **facts())


if __name__ == "__main__":
    main()
