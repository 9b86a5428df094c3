"""Rows of logits for the kernels of draft losses, and what is right for them: float64, by definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnpoint.drafting.kernels.rows import RowFigures, RowKernel, RowWeights
from turnpoint.drafting.losses import Statistic

EVERY: frozenset[Statistic] = frozenset({"alphas", "draft_logprobs", "forward_kl", "reverse_kl"})
FIGURES = ("normaliser", "alphas", "below", "forward_kl", "reverse_kl")
WEIGHTS = ("alphas", "draft_logprobs", "forward_kl", "reverse_kl")
ROWS, IDLE, GUARD = 5, 3, 7.0  # the row of IDLE learns nothing; GUARD stands behind each row


@dataclass(frozen=True)
class Case:
    """Rows with a gap between them, ids outside either law, and a row without weights."""

    needs: frozenset[Statistic]
    target_memory: Tensor  # [n, V + gap]
    draft_memory: Tensor
    token_ids: Tensor
    weights: RowWeights
    width: int

    @property
    def target(self) -> Tensor:
        return self.target_memory[:, : self.width]

    @property
    def draft(self) -> Tensor:
        return self.draft_memory[:, : self.width]


def case(
    width: int,
    *,
    dtype: torch.dtype = torch.float32,
    needs: frozenset[Statistic] = EVERY,
    device: str = "cpu",
    shift: float = 0.0,
) -> Case:
    draws = torch.Generator().manual_seed(width)

    def logits(outside: slice) -> Tensor:
        memory = torch.full((ROWS, width + 3), GUARD)
        memory[:, :width] = 2 * torch.randn(ROWS, width, generator=draws) + shift
        memory[1, :width][outside] = -torch.inf
        return memory.to(dtype).to(device)

    weights = torch.randn(ROWS, len(WEIGHTS), generator=draws)  # columns of it, as from a chain's loss
    weights[IDLE] = 0.0
    columns = zip(WEIGHTS, weights.to(device).unbind(1), strict=True)
    return Case(
        needs=needs,
        target_memory=logits(slice(2, width // 2)),
        draft_memory=logits(slice(width // 3 + 1, width - 2)),
        token_ids=torch.randint(min(width, 2), (ROWS,), generator=draws).to(device),
        weights=RowWeights(**{name: it if name in needs else torch.zeros_like(it) for name, it in columns}),
        width=width,
    )


def run(kernel: RowKernel, given: Case) -> tuple[RowFigures, Tensor]:
    """Returns what `kernel` measures, and the memory in which it has put slopes."""
    memory = given.draft_memory.clone()
    draft = memory[:, : given.width]
    target: dict[str, Any] = {
        "target_logits": given.target,
        "target_normaliser": kernel.normaliser(given.target),
    }
    figures: RowFigures = kernel.measure(**target, draft_logits=draft, needs=given.needs)
    kernel.slope_(
        **target,
        draft_logits=draft,
        token_ids=given.token_ids,
        figures=figures,
        weights=given.weights,
        needs=given.needs,
    )
    return figures, memory


def right(given: Case) -> tuple[dict[str, Tensor], Tensor]:
    """Returns figures and slopes, [n, V], in float64 on the CPU."""
    target, draft = given.target.double().cpu(), given.draft.double().cpu()
    p, q = target.softmax(-1), draft.softmax(-1)
    log_p, log_q = (it.log_softmax(-1).clamp(min=-100) for it in (target, draft))
    wanted, gap = (q <= p).double(), log_q - log_p
    figures = {
        "normaliser": draft.logsumexp(-1),
        "alphas": torch.minimum(p, q).sum(-1),
        "below": (q * wanted).sum(-1),
        "forward_kl": -(p * gap).sum(-1) * ("forward_kl" in given.needs),
        "reverse_kl": (q * gap).sum(-1) * ("reverse_kl" in given.needs),
    }
    a, l, f, r = (getattr(given.weights, name).double().cpu().unsqueeze(1) for name in WEIGHTS)  # noqa: E741
    token = torch.zeros_like(q).scatter_(1, given.token_ids.cpu().unsqueeze(1), 1.0)
    of_alpha = q * (wanted - figures["below"].unsqueeze(1))
    of_reverse = q * (gap - (q * gap).sum(-1, keepdim=True))
    return figures, a * of_alpha + l * (token - q) + f * (q - p) + r * of_reverse


def check(kernel: RowKernel, given: Case, *, rounding: float = 1e-4) -> None:
    """Asserts that `kernel` is right; slopes may be off by `rounding` of their size."""
    expected, slopes = right(given)
    figures, memory = run(kernel, given)
    for name in FIGURES:
        found = getattr(figures, name)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double().cpu(), expected[name], rtol=3e-6, atol=1e-6, msg=name)
    assert memory.dtype == given.draft_memory.dtype
    found = memory[:, : given.width].double().cpu()
    torch.testing.assert_close(found, slopes, rtol=rounding, atol=1e-6)
    assert bool(memory[:, given.width :].eq(GUARD).all())  # what lies behind a row is not ours
    assert bool(memory[IDLE, : given.width].eq(0).all())
