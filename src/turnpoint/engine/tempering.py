"""How much warmer than the policy drafts are drawn: the factor by depth with the largest overlap so far.

    q_c = softmax(draft's logits / (c T)),    c* = argmax_c mean sum_v min(p_v, q_c,v)

of the laws at depths that were reached, at the T of their request. Verification is given the very q_c that
a draft was drawn from, so that any factor is exact; factors of a round come from rounds before it, and so
never from a token that they decide on. A few rows of every eighth round are looked at: what that costs is
a softmax for each factor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnpoint.engine.filters import Filters

FACTORS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)
WATCHED_ROWS = 4
_EVERY = 8  # rounds
_MEMORY = 0.98  # of running sums, per round that is looked at
_ENOUGH = 32.0  # laws of a depth, before which its factor stays 1


class Tempering:
    """The factors of one drafter; all are 1 until enough has been seen."""

    def __init__(self, deepest: int) -> None:
        self._overlaps = np.zeros((deepest, len(FACTORS)))
        self._counts = np.zeros(deepest)
        self._rounds = 0

    @property
    def factors(self) -> npt.NDArray[np.float64]:
        """[deepest], by depth."""
        best = np.array(FACTORS)[self._overlaps.argmax(1)]
        return np.where(self._counts < _ENOUGH, 1.0, best)

    def next_round(self) -> bool:
        """Counts a round; returns whether it is to be looked at."""
        self._rounds += 1
        return self._rounds % _EVERY == 1

    def observe(
        self,
        *,
        target: Tensor,
        logits: Tensor,
        temperatures: npt.NDArray[np.float64],
        filters: Filters,
        reached: Tensor,
    ) -> None:
        """Takes in laws of the target [n, gamma, V], the draft's logits there, and which count [n, gamma].

        Temperatures and filters are of the n rows; those at temperature 0 show nothing.
        """
        warm = torch.from_numpy(np.where(temperatures > 0, temperatures, 1.0)).to(logits.device)
        filters = filters.rows(np.repeat(np.arange(len(temperatures)), logits.shape[1]))
        counting = reached & torch.from_numpy(temperatures > 0).to(reached.device).unsqueeze(1)
        here = slice(0, logits.shape[1])
        self._counts *= _MEMORY
        self._overlaps *= _MEMORY
        self._counts[here] += counting.sum(0).cpu().numpy()
        for at, factor in enumerate(FACTORS):
            draft = torch.softmax(logits / (factor * warm).float()[:, None, None], dim=-1)
            draft = filters(draft.flatten(0, 1)).view_as(draft)
            overlap = torch.minimum(target, draft).sum(-1).masked_fill(~counting, 0.0)
            self._overlaps[here, at] += overlap.double().sum(0).cpu().numpy()
