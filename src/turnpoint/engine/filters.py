"""Which tokens of a law may be drawn at all: the k likeliest, and of those the fewest with mass p.

In this order and at the request's temperature, as transformers and vLLM have it: p is a share of what the k
likeliest are left with. A filtered law is a law like any other: drafts of it are verified exactly, and the
log-probabilities that are returned are its own. It is for evaluation. To learn from it, a trainer would have
to know which tokens were cut at each place, so that recipes do not offer it for rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from turnpoint.protocols import GenerateRequest

_FEW = 512  # tokens
_ROUNDING = 1e-5  # of float32 masses


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Of n rows."""

    top_k: npt.NDArray[np.int64]  # [n], 0 for all
    top_p: npt.NDArray[np.float64]  # [n], 1 for all

    @staticmethod
    def of(requests: Iterable[GenerateRequest]) -> Filters:
        """Returns those of `requests`, a row each."""
        pairs = [(it.top_k, it.top_p) for it in requests]
        return Filters(
            top_k=np.array([k for k, _ in pairs], dtype=np.int64), top_p=np.array([p for _, p in pairs])
        )

    def rows(self, rows: npt.NDArray[np.int64] | slice) -> Filters:
        """Returns those of `rows`, which may come several times."""
        return Filters(top_k=self.top_k[rows], top_p=self.top_p[rows])

    def __call__(self, probs: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """Returns the filtered laws; the very tensor where no row has a filter."""
        filtering = ((self.top_k > 0) | (self.top_p < 1)).nonzero()[0]
        if not len(filtering):
            return probs
        rows = torch.from_numpy(filtering).to(probs.device)
        most = torch.from_numpy(self.top_k[filtering]).to(probs.device).unsqueeze(1)
        mass = torch.from_numpy(self.top_p[filtering]).to(probs.device).unsqueeze(1)
        values, ids = _likeliest(probs[rows], most, mass)
        rank = torch.arange(values.shape[1], device=probs.device)
        values = torch.where((most == 0) | (rank < most), values, 0.0)
        whole = torch.where(
            most == 0, probs[rows].double().sum(-1, keepdim=True), values.sum(-1, keepdim=True)
        )
        above = values.cumsum(-1) - values  # of likelier tokens; 0 for the first, which so always stays
        values = torch.where((mass >= 1) | (above < mass * whole), values, 0.0)
        values = values / values.sum(-1, keepdim=True)
        left = probs.new_zeros(len(rows), probs.shape[1]).scatter_(1, ids, values.to(probs.dtype))
        return probs.index_copy(0, rows, left)


def _likeliest(probs: Tensor, most: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Returns at least the tokens that stay, likeliest first: a vocabulary is not sorted to draw from ten."""
    few = min(_FEW, probs.shape[1])
    values, ids = probs.topk(few, dim=-1)
    enough = torch.where(most > 0, most <= few, values.sum(-1, keepdim=True) >= mass + _ROUNDING)
    if not bool(enough.all()):
        values, ids = probs.sort(dim=-1, descending=True)
    return values.double(), ids
