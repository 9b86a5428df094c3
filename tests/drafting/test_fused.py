"""The fused draft loss is the plain one, in value and gradient, however it is cut."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from turnpoint.drafting import draft_loss, fused_linear_tv, row_statistics
from turnpoint.drafting.losses import DraftLossName, Statistic
from turnpoint.losses import LinearHead

NAMES: tuple[DraftLossName, ...] = get_args(DraftLossName)
ALPHAS: tuple[Statistic, ...] = ("alphas",)
GAMMA, ANCHORS, WIDTH, VOCABULARY = 3, 11, 5, 17


def inputs(dtype: torch.dtype = torch.float64, *, device: str = "cpu") -> dict[str, Any]:
    draws = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64).to(dtype).to(device)

    rows = ANCHORS  # the last anchors have no room for all depths
    mask = torch.rand(ANCHORS, GAMMA, generator=draws).gt(0.15).long().cumprod(1).bool()
    mask &= torch.arange(ANCHORS).unsqueeze(1) + torch.arange(GAMMA) < rows
    return {
        "head": LinearHead(normal(VOCABULARY, WIDTH)),
        "target_hidden": normal(rows, WIDTH),
        "draft_hidden": normal(GAMMA, ANCHORS, WIDTH).requires_grad_(),
        "next_ids": torch.randint(VOCABULARY, (rows,), generator=draws).to(device),
        "mask": mask.to(device),
        "denominator": 7.0,
    }


def plain(given: dict[str, Any], loss: DraftLossName, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Returns loss and acceptance with all logits at once."""
    places = (torch.arange(ANCHORS).unsqueeze(1) + torch.arange(GAMMA)).clamp(max=ANCHORS - 1)
    head: LinearHead = given["head"]
    hidden: Tensor = given["draft_hidden"]
    draft = torch.stack([head(depth) for depth in hidden], 1)
    rows = row_statistics(
        frozenset({*draft_loss(loss).needs, *ALPHAS}),
        target_logits=head(given["target_hidden"])[places] / temperature,
        draft_logits=draft / temperature,
        token_ids=given["next_ids"][places],
    )
    mask: Tensor = given["mask"]
    value = draft_loss(loss)(rows, mask).sum() / given["denominator"]
    return value, torch.where(mask, rows.alphas, 0.0).detach()


def slope(value: Tensor, given: dict[str, Any]) -> Tensor:
    leaf: Tensor = given["draft_hidden"]
    return torch.autograd.grad(value, leaf, retain_graph=True)[0]


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("loss", NAMES)
def test_value_and_gradient_are_those_of_the_plain_form(loss: DraftLossName, chunk: int) -> None:
    given = inputs()
    expected, alphas = plain(given, loss, temperature=0.7)
    found = fused_linear_tv(**given, loss=loss, temperature=0.7, chunk=chunk)
    torch.testing.assert_close(found.loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.alphas.double(), alphas, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slope(found.loss, given), slope(expected, given), rtol=1e-4, atol=1e-6)
    assert float(slope(expected, given).abs().max()) > 1e-3


def test_what_a_head_does_to_its_product_is_differentiated() -> None:
    given = inputs()
    weight: Tensor = given["head"].weight
    bias = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64)

    def finish(scores: Tensor) -> Tensor:
        capped = 2.0 * torch.tanh(scores / 2.0)
        return torch.cat([capped[:, :-2], torch.full_like(capped[:, -2:], -torch.inf)], -1)

    given["head"], given["next_ids"] = (
        LinearHead(weight, bias, finish=finish),
        given["next_ids"].clamp(max=14),
    )
    expected, _ = plain(given, "pathwise_tv")
    found = fused_linear_tv(**given, loss="pathwise_tv", chunk=4)
    torch.testing.assert_close(slope(found.loss, given), slope(expected, given), rtol=1e-4, atol=1e-6)


def test_masked_rows_may_hold_anything() -> None:
    given = inputs()
    clean = fused_linear_tv(**given, loss="kl_tv_hybrid", chunk=4)
    where = given["mask"].T.unsqueeze(-1)
    poisoned: dict[str, Any] = given | {
        "draft_hidden": torch.where(where, given["draft_hidden"], torch.nan).detach().requires_grad_()
    }
    found = fused_linear_tv(**poisoned, loss="kl_tv_hybrid", chunk=4)
    torch.testing.assert_close(found.loss, clean.loss)
    gradient = slope(found.loss, poisoned)
    torch.testing.assert_close(gradient, slope(clean.loss, given))
    assert bool(gradient.masked_select(~where).eq(0).all())


def test_nothing_flows_to_target_or_head() -> None:
    given = inputs()
    weight = given["head"].weight.requires_grad_()
    given["target_hidden"].requires_grad_()
    found = fused_linear_tv(**given)
    unused = torch.autograd.grad(found.loss, [weight, given["target_hidden"]], allow_unused=True)
    assert unused == (None, None)
    assert not found.alphas.requires_grad


def test_half_precision_stays_near() -> None:
    exact, half = inputs(), inputs(torch.bfloat16)
    value, found = plain(exact, "end_to_end_tv")[0], fused_linear_tv(**half)
    assert found.loss.dtype == torch.float32
    assert float(found.loss.detach()) == pytest.approx(float(value.detach()), rel=0.02)
    assert slope(found.loss, half).dtype == torch.bfloat16


def test_logits_never_exist_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    product = LinearHead.__call__

    def counted(head: LinearHead, hidden: Tensor) -> Tensor:
        seen.append(len(hidden))
        return product(head, hidden)

    monkeypatch.setattr(LinearHead, "__call__", counted)
    found = fused_linear_tv(**inputs(), chunk=2)
    assert max(seen) <= 2 + GAMMA - 1
    assert float(found.loss.detach()) > 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"temperature": 0.0}, "temperature = 0.0"),
        ({"chunk": 0}, "chunk = 0"),
        ({"mask": torch.ones(ANCHORS, GAMMA, dtype=torch.bool)}, "beyond the 11 target rows"),
        ({"mask": torch.ones(ANCHORS, 2, dtype=torch.bool)}, r"mask of \[11, 2\]"),
        ({"loss": "tvd"}, "'tvd'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        fused_linear_tv(**(inputs() | changes))
