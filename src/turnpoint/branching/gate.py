"""Whether reflections can be believed: their OUTCOME line against the verifier, over recent steps.

The paper measures this agreement (arXiv 2609.36864, Table 6: 99.7 % for Qwen3-8B, 56-76 % for Qwen3-1.7B)
and does not act on it; acting is ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Gate:
    """Closed while the mean agreement of the last `steps` steps is under `threshold`.

    It moves between steps only, so that what a step does depends on no order within it. Open before the
    first step.
    """

    def __init__(self, *, threshold: float, steps: int) -> None:
        self.threshold = threshold
        self._recent: deque[float] = deque(maxlen=steps)

    @property
    def agreement(self) -> float | None:
        """The mean over recent steps; None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    @property
    def closed(self) -> bool:
        """Whether reflections decide nothing at present."""
        return self.agreement is not None and self.agreement < self.threshold

    def observe(self, steps: Iterable[float]) -> None:
        """Takes note of the agreement of further steps, in order."""
        self._recent.extend(steps)
