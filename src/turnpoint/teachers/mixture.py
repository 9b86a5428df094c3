"""Several teachers as one: the mean of their laws, of which there are two that are not the same target.

    arithmetic   log sum_i w_i q_i(y)     what one part finds likely is likely; a law
    geometric    sum_i w_i log q_i(y)     what one part finds unlikely is unlikely; no law, its sum Z <= 1

The geometric one is log of the normalised mean plus log Z, and Z depends on the prefix alone. A term that
does not depend on the sampled token has the expected policy gradient 0, so at discount 0 the gradient is that
of KL(policy || normalised mean), and of sum_i w_i KL(policy || q_i), which differ by log Z. With a discount
above 0 a token also answers for log Z of the prefixes it leads to: where parts disagree Z is small, so the
policy is drawn to where they agree. At discount 1 the gradient is that of sum_i w_i KL(policy || q_i) of
whole rollouts, or of the KL to the normalised geometric mean of the parts' laws of whole rollouts, whose
next-token laws are not the means of the parts'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from turnpoint.types import TeacherTargets, float_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Weights of teachers by name, positive and summing to 1, and which mean of their laws is meant."""

    of: Mapping[str, float]
    mean: Literal["arithmetic", "geometric"]
    coef: float

    def word(self, parts: Mapping[str, Mapping[int, TeacherTargets]]) -> dict[int, TeacherTargets]:
        """Returns what the mixture says of each segment on which all its parts, by name, have a word."""
        words = [parts.get(name, {}) for name in self.of]
        weights = list(self.of.values())
        return {
            segment: TeacherTargets(
                logprobs=float_array(
                    mixed([word[segment].logprobs for word in words], weights=weights, mean=self.mean)
                ),
                coef=self.coef,
            )
            for segment in words[0]
            if all(segment in word for word in words)
        }


def mixed(
    logprobs: Sequence[npt.ArrayLike], *, weights: Sequence[float], mean: Literal["arithmetic", "geometric"]
) -> npt.NDArray[np.float64]:
    """Returns the mean of the parts' probabilities, [n] nats, of [n] log-probabilities of each part.

    -inf is no mistake: arithmetic where all parts find an id impossible, geometric where one does.
    """
    parts = np.stack([np.asarray(part, dtype=np.float64) for part in logprobs])
    column = np.asarray(weights, dtype=np.float64)[:, None]
    if mean == "geometric":
        return (column * parts).sum(axis=0)
    return np.logaddexp.reduce(np.log(column) + parts, axis=0)
