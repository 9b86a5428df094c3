"""How deep to draft: the depth with the most tokens per second, by what was measured; 0 is one of them.

    tokens of a round to depth g    N(g) = 1 + P_1 + ... + P_g,    P_j = alpha_1 ... alpha_j
    seconds                         T(g) = verify(rows (1 + g)) + g draft(rows)

alpha_i is a running mean of sum min(p, q) where depth i was reached, not of acceptances: the same mean with
less noise. In block verification a prefix is kept with a probability k_i of its own, whatever follows it
(P_i in engine/verification.py), and alpha_i is the mean of sum min(k_{i-1} p, q) over that of k_{i-1}.

A rule decides before anything is drafted, from what earlier steps have shown, and so never by a token that
it decides on: to drop a token by what was drawn changes the law.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_MEMORY = 0.95  # of running means, per observation
_PROBES = 2  # of a cost that nobody has measured, and that could pay
_AGAIN_AFTER = 100  # steps without drafts, after which one is tried, for acceptance may have changed


def reached(lengths: npt.NDArray[np.int64], accepted: Tensor, gamma: int) -> Tensor:
    """Returns which drafts [n, gamma] there are with all before them accepted, from depths and counts [n]."""
    depth = torch.arange(gamma, device=accepted.device)
    drafted = depth < torch.from_numpy(lengths).to(accepted.device).unsqueeze(1)
    return drafted & (depth <= accepted.unsqueeze(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """What a round showed of drafts, by depth [gamma]."""

    reached: npt.NDArray[np.float64]  # how many drafts were verified with all before them accepted
    overlaps: npt.NDArray[
        np.float64
    ]  # sum of sum_v min(p_v, q_v) over those: how many of them are, in the mean

    @staticmethod
    def of(target: Tensor, drafts: Tensor, *, lengths: npt.NDArray[np.int64], accepted: Tensor) -> Survival:
        """Returns it from the laws of both, [n, gamma, V], the depths [n], and how many were accepted [n]."""
        counting = reached(lengths, accepted, target.shape[1])
        overlaps = torch.where(counting, torch.minimum(target, drafts).sum(-1), 0.0)
        return Survival(
            reached=counting.sum(0).double().cpu().numpy(), overlaps=overlaps.double().sum(0).cpu().numpy()
        )

    @staticmethod
    def of_blocks(target: Tensor, drafts: Tensor, ids: Tensor, *, lengths: npt.NDArray[np.int64]) -> Survival:
        """Returns it of block verification, in the mean over coins and over each chain's last token.

        Laws are [n, gamma, V], drafted `ids` [n, gamma], depths [n].
        """
        until = torch.from_numpy(lengths).to(target.device)
        kept = torch.ones_like(target[:, 0, 0])  # how likely the chain so far is
        reached, overlaps = torch.zeros(2, target.shape[1], dtype=torch.float64, device=target.device)
        for at in range(target.shape[1]):
            kept = torch.where(at < until, kept, 0.0)
            reached[at] = kept.sum()
            overlaps[at] = torch.minimum(kept.unsqueeze(1) * target[:, at], drafts[:, at]).sum()
            p, q = (law[:, at].gather(1, ids[:, at : at + 1]).squeeze(1) for law in (target, drafts))
            kept = torch.where(kept * p < q, kept * p / q, 1.0)
        return Survival(reached=reached.cpu().numpy(), overlaps=overlaps.cpu().numpy())


class FixedDepth:
    """Always the same depth, whatever it costs: a run with it is the same run every time."""

    def __init__(self, depth: int) -> None:
        """Raises ValueError for a negative depth."""
        if depth < 0:
            raise ValueError(f"a depth of {depth}: it counts drafted tokens, 0 for none")
        self.deepest = depth

    def depth(self, *, rows: int) -> int:
        """Returns the depth of the next round."""
        return self.deepest

    def observe(self, survival: Survival) -> None:
        """Learns nothing."""

    def spent(self, *, rows: int, depth: int, tokens: int, drafting: float, verifying: float) -> None:
        """Learns nothing."""


class GoodputDepth:
    """The depth that is expected to give most tokens per second, up to `deepest`.

    What verifying some number of tokens costs is measured as it happens, at depth 0 too, so that most of the
    table is there before anything is drafted. A depth whose cost is not known is tried twice if it could pay.
    """

    def __init__(self, deepest: int) -> None:
        """Raises ValueError for a depth below 1."""
        if deepest < 1:
            raise ValueError(f"a deepest depth of {deepest}: 1 or more, or draft nothing")
        self.deepest = deepest
        self._reached = np.zeros(deepest)
        self._overlaps = np.zeros(deepest)
        self._verifying = _Costs()  # seconds by tokens through the network
        self._drafting = _Costs()  # seconds of one depth by rows
        self._idle = 0  # steps since something was drafted

    def depth(self, *, rows: int) -> int:
        """Returns the depth of the next round of so many rows."""
        if not rows:
            return 0
        tokens = [1.0, *np.cumsum(self.survival).tolist()]
        tokens = [1.0, *(1.0 + kept for kept in tokens[1:])]
        plain = self._verifying.at(rows)
        if plain is None:
            return 0
        best, most = 0, 1.0 / plain
        for depth in range(1, self.deepest + 1):
            verifying, drafting = self._verifying.at(rows * (1 + depth)), self._drafting.at(rows)
            if verifying is None or drafting is None:
                if tokens[depth] / plain > most:
                    return depth
                continue
            goodput = tokens[depth] / (verifying + depth * drafting)
            if goodput > most:
                best, most = depth, goodput
        if not best and self._idle >= _AGAIN_AFTER:
            return 1
        return best

    @property
    def survival(self) -> list[float]:
        """P_j by depth; a depth that was never reached is as the one before it, all are 1 at first."""
        alphas: list[float] = []
        for reached, overlap in zip(self._reached, self._overlaps, strict=True):
            alphas.append(float(overlap / reached) if reached else (alphas[-1] if alphas else 1.0))
        return list(itertools.accumulate(alphas, lambda left, right: left * right))

    def observe(self, survival: Survival) -> None:
        """Takes in what a round showed."""
        here = len(survival.reached)
        self._reached *= _MEMORY
        self._overlaps *= _MEMORY
        self._reached[:here] += survival.reached
        self._overlaps[:here] += survival.overlaps

    def spent(self, *, rows: int, depth: int, tokens: int, drafting: float, verifying: float) -> None:
        """Takes in the seconds of a step that did nothing but decode."""
        self._verifying.add(tokens, verifying)
        self._idle = 0 if depth else self._idle + 1
        if depth:
            self._drafting.add(rows, drafting / depth)


DepthRule: TypeAlias = FixedDepth | GoodputDepth


class _Costs:
    """Seconds as a function of a size, by halves of octaves, straight between those that were measured."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[float, float, int]] = {}  # mean size, mean seconds, times

    def add(self, size: int, seconds: float) -> None:
        cell = _cell(size)
        if cell not in self._cells:
            self._cells[cell] = (size, seconds, 1)
            return
        mean, cost, times = self._cells[cell]
        share = max(1 / (times + 1), 1 - _MEMORY)
        # a step may be held up by anything; none runs faster than it can
        seconds = min(seconds, 2 * cost)
        self._cells[cell] = (mean + share * (size - mean), cost + share * (seconds - cost), times + 1)

    def at(self, size: int) -> float | None:
        """Returns the seconds of `size`; None where it is not known, or was measured too seldom."""
        if self._cells.get(_cell(size), (0.0, 0.0, 0))[2] >= _PROBES:
            return self._cells[_cell(size)][1]
        known = sorted((mean, cost) for mean, cost, times in self._cells.values() if times >= _PROBES)
        below = [it for it in known if it[0] <= size]
        above = [it for it in known if it[0] >= size]
        if not below or not above:
            return None
        (left, low), (right, high) = below[-1], above[0]
        return low if left == right else low + (high - low) * (size - left) / (right - left)


def _cell(size: int) -> int:
    return round(2 * math.log2(size))
