"""What a server's weights are known by: the log-probabilities that it gives one sequence of the run's own.

A server cannot be asked for its weights, and a name is kept when others are loaded under it. Its law moves by
rounding alone while the weights stay, more or less by what else it computes at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnpoint.losses.laws import LOWEST_LOGPROB
from turnpoint.types import TokenIds

LENGTH = 256  # tokens of a probe at most
_DECIMALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Who said it, in the server's words, and what: nats by token, never below what a loss takes for -inf."""

    model: str
    version: str
    logprobs: tuple[float, ...]
    tolerance: float  # mean |difference|, nats, up to which the weights are the same

    @staticmethod
    def of(logprobs: Sequence[float], *, model: str, version: str, tolerance: float) -> Probe:
        """Returns a probe that can be written as JSON and read again."""
        values = tuple(round(max(float(value), LOWEST_LOGPROB), _DECIMALS) for value in logprobs)
        return Probe(model=model, version=version, logprobs=values, tolerance=tolerance)

    def gap(self, other: Probe) -> float:
        """Returns the mean |difference| of two answers, nats; infinite for answers about other sequences."""
        if len(self.logprobs) != len(other.logprobs) or not self.logprobs:
            return float("inf")
        gaps = [abs(mine - theirs) for mine, theirs in zip(self.logprobs, other.logprobs, strict=True)]
        return sum(gaps) / len(gaps)

    def same_weights(self, other: Probe) -> bool:
        """Whether `other` may come from the weights that this one came from."""
        return self.gap(other) <= self.tolerance


def probe_ids(prompt: TokenIds) -> TokenIds:
    """Returns the sequence that is asked about: the end of a prompt of the run."""
    return prompt[-LENGTH:]
