"""Losses of draft heads: hand values, closed slopes against autograd, bounds, zeros, masks."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnpoint.drafting import (
    accept_ratios,
    draft_loss,
    end_to_end_tv_loss,
    overlap,
    pathwise_tv_loss,
    row_statistics,
    tv_loss,
)
from turnpoint.drafting.losses import DraftLossName

NAMES: tuple[DraftLossName, ...] = get_args(DraftLossName)


def logits(*shape: int, seed: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slope(value: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(value.sum(), leaf, retain_graph=True)[0]


# --- overlap ------------------------------------------------------------------------------------


def test_overlap_by_hand() -> None:
    target, draft = torch.tensor([0.9, 0.05, 0.05]), torch.tensor([0.5, 0.3, 0.2])
    alpha = overlap(target_logits=target.log(), draft_logits=draft.log())
    assert float(alpha) == pytest.approx(0.6)
    assert float(tv_loss(target_logits=target.log(), draft_logits=draft.log())) == pytest.approx(0.4)


def test_a_sharper_draft_overlaps_more_with_a_sharp_target() -> None:
    """At a quarter of its temperature: .938 (and the one-hot draft of its likeliest token: .9)."""
    target, draft = torch.tensor([0.9, 0.05, 0.05]), torch.tensor([0.5, 0.3, 0.2])
    alpha = overlap(target_logits=target.log(), draft_logits=draft.log() / 0.25)
    assert float(alpha) == pytest.approx(0.938, abs=5e-4)


@given(seed=st.integers(0, 300), size=st.integers(2, 9))
def test_the_slope_of_overlap_is_that_of_sum_min(seed: int, size: int) -> None:
    target, draft = logits(4, size, seed=seed), logits(4, size, seed=seed + 1000).requires_grad_()
    alpha = overlap(target_logits=target, draft_logits=draft)
    plain = torch.minimum(target.softmax(-1), draft.softmax(-1)).sum(-1)
    torch.testing.assert_close(alpha, plain)
    found = slope(alpha, draft)
    torch.testing.assert_close(found, slope(plain, draft), rtol=1e-10, atol=1e-12)
    assert float(found.abs().max()) <= 0.25
    assert float(found.abs().sum(-1).max()) <= 0.5


def test_overlap_moves_towards_the_target_and_leaves_it_alone() -> None:
    target, draft = logits(3, 5, seed=0).requires_grad_(), logits(3, 5, seed=1).requires_grad_()
    tv_loss(target_logits=target, draft_logits=draft).sum().backward()  # pyright: ignore[reportUnknownMemberType]
    assert target.grad is None
    assert draft.grad is not None
    before = overlap(target_logits=target, draft_logits=draft)
    after = overlap(target_logits=target, draft_logits=draft - 0.1 * draft.grad)
    assert bool((after > before).all())


def test_ids_at_minus_infinity_are_outside() -> None:
    target, draft = logits(2, 5, seed=2), logits(2, 5, seed=3).requires_grad_()
    target[:, 4] = -torch.inf
    inf = torch.full((2, 1), -torch.inf, dtype=torch.float64)
    wide = torch.cat([draft, inf], -1)
    alpha = overlap(target_logits=torch.cat([target, inf], -1), draft_logits=wide)
    torch.testing.assert_close(alpha, overlap(target_logits=target, draft_logits=draft))
    assert bool(slope(alpha, draft).isfinite().all())


def test_overlap_of_other_shapes_is_refused() -> None:
    with pytest.raises((ValueError, TypeError)):
        overlap(target_logits=torch.zeros(2, 3), draft_logits=torch.zeros(2, 4))


# --- chains -------------------------------------------------------------------------------------


def test_chains_by_hand() -> None:
    alphas = torch.tensor([0.5, 0.4, 0.8], dtype=torch.float64)
    assert float(end_to_end_tv_loss(alphas)) == pytest.approx(1 - (0.5 + 0.2 + 0.16) / 3)
    ratios = torch.tensor([0.9, 0.2, torch.nan], dtype=torch.float64)  # that of the last is not read
    loss = pathwise_tv_loss(alphas=alphas, accept_ratios=ratios)
    assert float(loss) == pytest.approx(1 - (0.5 + 0.9 * 0.4 + 0.18 * 0.8) / 3)


def test_the_slope_of_a_chain_survives_zeros() -> None:
    """d loss / d alpha_i = - 1/n prod_{k<i} alpha_k (1 + sum_{m>i} prod_{i<k<=m} alpha_k)."""
    for values in itertools.product([0.0, 0.3, 1.0], repeat=3):
        alphas = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        first, second, third = values
        expected = [1 + second * (1 + third), first * (1 + third), first * second]
        found = slope(end_to_end_tv_loss(alphas), alphas)
        torch.testing.assert_close(found, -torch.tensor(expected, dtype=torch.float64) / 3)


def test_ratios_learn_only_where_the_draft_gives_too_little() -> None:
    target = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    draft = torch.tensor([-2.0, -0.5, -1.0], dtype=torch.float64, requires_grad=True)
    ratios = accept_ratios(target_logprobs=target, draft_logprobs=draft)
    torch.testing.assert_close(ratios, torch.tensor([-1.0, 0, 0], dtype=torch.float64).exp())
    torch.testing.assert_close(
        slope(ratios, draft), torch.tensor([-1.0, -torch.inf, -torch.inf]).exp().double()
    )
    assert not torch.autograd.grad(ratios.sum(), target, allow_unused=True)[0]


def test_the_pathwise_form_is_unbiased_and_the_product_of_means_is_not() -> None:
    """Over every text of three tokens that the target draws; alphas depend on the tokens before."""
    size, depths = 3, 3
    exact = pathwise = product = 0.0
    for text in itertools.product(range(size), repeat=depths):
        rows = [(laws(text[:at], 1), laws(text[:at], 2)) for at in range(depths)]
        p, q = (torch.stack(side) for side in zip(*rows, strict=True))
        tokens = torch.tensor(text).unsqueeze(1)
        of_p, of_q = (side.gather(1, tokens).squeeze(1) for side in (p, q))
        alphas, weight = torch.minimum(p, q).sum(1), float(of_p.prod())
        ratios = accept_ratios(target_logprobs=of_p.log(), draft_logprobs=of_q.log())
        pathwise += weight * float(pathwise_tv_loss(alphas=alphas, accept_ratios=ratios))
        product += weight * float(end_to_end_tv_loss(alphas))
        # P(first j drafts accepted), j = depths here, needs sum of products of minima: take all lengths
        exact += sum(float(torch.minimum(of_p, of_q)[:j].prod()) / size ** (depths - j) for j in (1, 2, 3))
    assert pathwise == pytest.approx(1 - exact / depths, abs=1e-12)
    assert abs(product - pathwise) > 1e-3


def laws(prefix: tuple[int, ...], seed: int) -> Tensor:
    number = sum((token + 1) * 5**place for place, token in enumerate(prefix))
    return logits(3, seed=1000 * seed + number, scale=1.5).softmax(0)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_short_chain_is_its_own_length_whatever_lies_behind(name: DraftLossName, length: int) -> None:
    rows = statistics(name, gamma=3)
    mask = torch.arange(3) < length
    poisoned = {
        key: torch.where(mask, value, torch.nan).detach().requires_grad_() for key, value in rows.items()
    }
    loss = draft_loss(name)
    value = chains(name, poisoned, mask)
    if length:
        short = {key: value[..., :length] for key, value in rows.items()}
        torch.testing.assert_close(value, chains(name, short, torch.ones(length, dtype=torch.bool)))
    else:
        assert float(value.detach()) == 0
    if loss.needs and length:
        for leaf in poisoned.values():
            found = torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)[0]
            assert found is None or bool(found[~mask].eq(0).all())


def statistics(name: DraftLossName, gamma: int) -> dict[str, Tensor]:
    target, draft = logits(gamma, 7, seed=4), logits(gamma, 7, seed=5)
    found = row_statistics(
        draft_loss(name).needs, target_logits=target, draft_logits=draft, token_ids=torch.arange(gamma)
    )
    return {key: getattr(found, key) for key in FIELDS}


FIELDS = ("alphas", "target_logprobs", "draft_logprobs", "forward_kl", "reverse_kl")


def chains(name: DraftLossName, rows: dict[str, Tensor], mask: Tensor) -> Tensor:
    from turnpoint.drafting.losses import RowStatistics

    return draft_loss(name)(RowStatistics(**rows), mask)


# --- by name ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_that_is_the_target_has_nothing_to_learn(name: DraftLossName) -> None:
    target = logits(2, 3, 6, seed=6)
    draft = target.clone().requires_grad_()
    rows = row_statistics(
        draft_loss(name).needs,
        target_logits=target,
        draft_logits=draft,
        token_ids=torch.zeros(2, 3, dtype=torch.long),
    )
    value = draft_loss(name)(rows, torch.ones(2, 3, dtype=torch.bool))
    if name != "cross_entropy":
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-12)
        assert float(slope(value, draft).abs().max()) < 0.25  # at a tie any slope of min is one


def test_closed_forms_of_each_row_loss() -> None:
    target, draft = logits(1, 5, seed=8), logits(1, 5, seed=9).requires_grad_()
    p, q = target.softmax(-1), draft.softmax(-1)
    alpha, below = torch.minimum(p, q).sum(), q[q <= p].sum()
    tv = -q * ((q <= p).double() - below)
    gap = (q / p).log()
    expected: dict[DraftLossName, Tensor] = {
        "cross_entropy": q - torch.eye(5, dtype=torch.float64)[2],
        "forward_kl": q - p,
        "reverse_kl": q * (gap - (q * gap).sum()),
        "tv": tv,
        "end_to_end_tv": tv,
        "pathwise_tv": tv,
        "negative_log": tv / alpha,
        "kl_tv_hybrid": (share := (-3 * alpha).exp()) * (q - p) + (1 - share) * tv,
    }
    for name, closed in expected.items():
        rows = row_statistics(
            draft_loss(name).needs, target_logits=target, draft_logits=draft, token_ids=torch.tensor([2])
        )
        value = draft_loss(name)(rows, torch.ones(1, dtype=torch.bool))
        torch.testing.assert_close(slope(value, draft), closed, rtol=1e-10, atol=1e-12)


def test_an_unknown_loss_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'tvd'.*end_to_end_tv"):
        draft_loss("tvd")
