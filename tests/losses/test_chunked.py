"""Losses from hidden states and heads: those of whole logits, and nothing kept of the vocabulary."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.losses.toys import KINDS
from turnpoint.losses import LinearHead, chunked_distillation, reverse_kl

N, D, E, V = 11, 5, 3, 17
every_kind = pytest.mark.parametrize("kind", KINDS)


def head(width: int, ids: int = V, *, seed: int) -> LinearHead:
    draws = torch.Generator().manual_seed(seed)
    weight, bias = (
        torch.randn(shape, generator=draws, dtype=torch.float64) for shape in [(ids, width), (ids,)]
    )
    return LinearHead(weight.requires_grad_(), bias.requires_grad_(), finish=softcap)


def softcap(scores: Tensor) -> Tensor:
    return 4.0 * torch.tanh(scores / 4.0)


def bed(n: int = N) -> dict[str, Any]:
    draws = torch.Generator().manual_seed(n)
    return {
        "student_head": head(D, seed=1),
        "student_hidden": torch.randn(n, D, generator=draws, dtype=torch.float64).requires_grad_(),
        "teacher_head": head(E, seed=2),
        "teacher_hidden": torch.randn(n, E, generator=draws, dtype=torch.float64).requires_grad_(),
        "sampled_ids": torch.randint(V, (n,), generator=draws),
        "weights": torch.rand(n, generator=draws, dtype=torch.float64),
    }


def weights_of(side: LinearHead) -> list[Tensor]:
    assert side.bias is not None
    return [side.weight, side.bias]


def trained(given: dict[str, Any]) -> list[Tensor]:
    return [given["student_hidden"], *weights_of(given["student_head"])]


def whole(kind: str, given: dict[str, Any], temperature: float = 1.0) -> Tensor:
    return KINDS[kind](
        student_logits=given["student_head"](given["student_hidden"]) / temperature,
        teacher_logits=given["teacher_head"](given["teacher_hidden"]) / temperature,
        sampled_ids=given["sampled_ids"],
        weights=given["weights"],
    )


@every_kind
@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_whole_logits(kind: str, chunk: int, temperature: float) -> None:
    given = bed()
    scale = torch.rand(N, dtype=torch.float64)
    values = chunked_distillation(KINDS[kind], **given, chunk=chunk, temperature=temperature)
    expected = whole(kind, given, temperature)
    torch.testing.assert_close(values, expected)
    for ours, theirs in zip(
        torch.autograd.grad((scale * values).sum(), trained(given)),
        torch.autograd.grad((scale * expected).sum(), trained(given)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@every_kind
def test_nothing_flows_to_the_teacher(kind: str) -> None:
    given = bed()
    chunked_distillation(KINDS[kind], **given, chunk=4).sum().backward()
    assert given["student_hidden"].grad is not None
    assert all(weight.grad is not None for weight in weights_of(given["student_head"]))
    assert given["teacher_hidden"].grad is None
    assert all(weight.grad is None for weight in weights_of(given["teacher_head"]))


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation, forward or backward, returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@every_kind
def test_no_row_of_logits_outlives_its_chunk(kind: str) -> None:
    given, kept = bed(200), 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            values = chunked_distillation(KINDS[kind], **given, chunk=16)
        values.sum().backward()
    assert kept == 200 * D + V * (D + 1)  # the student's hidden states and head themselves
    assert largest.numel <= max(16 * V, 200 * D) < 200 * V


def without_rows(given: dict[str, Any]) -> dict[str, Any]:
    return {name: it for name, it in given.items() if name not in ("sampled_ids", "weights")}


@every_kind
def test_heads_padded_differently_meet_on_the_ids_of_the_tokenizer(kind: str) -> None:
    given = bed()
    expected = whole(kind, given)
    hidden: Tensor = given["student_hidden"]
    slope = torch.autograd.grad(expected.sum(), hidden)[0]
    for name, width, extra, seed in [("student_head", D, 3, 1), ("teacher_head", E, 8, 2)]:
        padded = head(width, V + extra, seed=seed + 10)  # rows that training never touched hold anything
        with torch.no_grad():
            for longer, plain in zip(weights_of(padded), weights_of(given[name]), strict=True):
                longer[:V] = plain
        given[name] = padded
    values = chunked_distillation(KINDS[kind], **given, chunk=4, vocab_size=V)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(torch.autograd.grad(values.sum(), hidden)[0], slope)
    with pytest.raises(Exception, match=r"cut both|ype-check"):
        chunked_distillation(KINDS[kind], **given, chunk=4)


def test_a_head_that_masks_its_padding_in_place_can_be_used() -> None:
    given = without_rows(bed())
    for side in ("student_head", "teacher_head"):
        weight, bias = weights_of(given[side])
        given[side] = LinearHead(weight, bias)
    expected = chunked_distillation(reverse_kl, **given, chunk=4, vocab_size=V - 2)
    slopes = torch.autograd.grad(expected.sum(), trained(given))

    def masked(scores: Tensor) -> Tensor:
        scores[:, V - 2 :] = -math.inf
        return scores

    for side in ("student_head", "teacher_head"):
        given[side] = replace(given[side], finish=masked)
    values = chunked_distillation(reverse_kl, **given, chunk=4)
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(torch.autograd.grad(values.sum(), trained(given)), slopes)


def test_a_student_that_is_its_teacher_stands_still() -> None:
    given = without_rows(bed())
    given |= {"teacher_head": given["student_head"], "teacher_hidden": given["student_hidden"].detach()}
    values = chunked_distillation(reverse_kl, **given, chunk=4)
    assert torch.equal(values, torch.zeros_like(values))
    for gradient in torch.autograd.grad(values.sum(), trained(given)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("trains", ["hidden", "weight"])
def test_what_is_frozen_costs_no_gradient(trains: str) -> None:
    """A policy with an adapter keeps its head as it is; a head alone may be trained too."""
    given = without_rows(bed())
    expected = torch.autograd.grad(
        chunked_distillation(reverse_kl, **given, chunk=4).sum(), trained(given)[trains == "weight"]
    )
    for tensor in trained(given):
        tensor.requires_grad_(False)
    leaf = trained(given)[trains == "weight"].requires_grad_()
    chunked_distillation(reverse_kl, **given, chunk=4).sum().backward()
    torch.testing.assert_close(leaf.grad, expected[0])
    assert [tensor.grad is not None for tensor in trained(given)].count(True) == 1


def test_a_merged_head_hands_its_gradient_on() -> None:
    given = without_rows(bed())
    low, high = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in [(V, 2), (2, D)])
    plain = given["student_head"]
    given["student_head"] = replace(plain, weight=plain.weight.detach() + low @ high)
    chunked_distillation(reverse_kl, **given, chunk=4).sum().backward(retain_graph=True)
    logits = given["student_head"](given["student_hidden"])
    whole_loss = reverse_kl(
        student_logits=logits, teacher_logits=given["teacher_head"](given["teacher_hidden"])
    ).sum()
    for factor, expected in zip((low, high), torch.autograd.grad(whole_loss, (low, high)), strict=True):
        torch.testing.assert_close(factor.grad, expected)


def test_a_half_precision_head_is_added_up_in_float32() -> None:
    given = without_rows(bed(512))
    exact = chunked_distillation(reverse_kl, **given, chunk=512).sum()
    head_weight: Tensor = given["student_head"].weight
    truth = torch.autograd.grad(exact, head_weight)[0]
    for side in ("student", "teacher"):
        given[f"{side}_hidden"] = given[f"{side}_hidden"].detach().bfloat16().requires_grad_()
        weight, bias = (it.detach().bfloat16().requires_grad_() for it in weights_of(given[f"{side}_head"]))
        given[f"{side}_head"] = LinearHead(weight, bias, finish=lambda scores: softcap(scores.float()))
    values = chunked_distillation(reverse_kl, **given, chunk=1)
    values.sum().backward()
    found = given["student_head"].weight.grad
    assert (values.dtype, found.dtype) == (torch.float32, torch.bfloat16)
    assert (found.double() - truth).norm() < 0.02 * truth.norm()


def test_no_tokens_at_all() -> None:
    given = without_rows(bed(0))
    values = chunked_distillation(reverse_kl, **given, chunk=4)
    values.sum().backward()
    assert values.shape == (0,)
    assert all(not tensor.grad.any() for tensor in trained(given) if tensor.grad is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk = 0 and temperature = 1.0 must be positive"),
        ({"temperature": 0.0}, "temperature = 0.0 must be positive"),
        ({"temperature": math.nan}, "temperature = nan must be positive"),
        ({"vocab_size": V + 1}, "a head of 17 ids for a tokenizer that knows 18"),
        ({"sampled_ids": torch.zeros(N - 1, dtype=torch.long)}, "one row per token .*'sampled_ids': 10"),
    ],
)
def test_refuses_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    bare = inspect.unwrap(chunked_distillation)
    with pytest.raises(ValueError, match=message):
        bare(KINDS["k2"], **{**bed(), "chunk": 4, **options})
