from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import ARCHITECTURES, tiny_decoder, tiny_model
from turnpoint.models.decoder import Decoder
from turnpoint.models.logprobs import chunked_logprobs
from turnpoint.models.tiles import tiled_logprobs

N, D, V = 7, 5, 23


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = 3 * torch.randn(N, D), torch.randn(V, D), torch.randn(V)
    targets = torch.tensor([0, 22, 5, 5, 4, 9, 10])  # both ends, both sides of a border, one twice
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), targets


@pytest.mark.parametrize("columns", [1, 5, 23, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.7])
def test_values_and_gradients_are_those_of_log_softmax(columns: int, with_bias: bool, factor: float) -> None:
    hidden, weight, bias, targets = inputs()
    learned = (hidden, weight, bias) if with_bias else (hidden, weight)
    logprobs, entropy = tiled_logprobs(
        hidden=hidden,
        weight=weight,
        bias=bias if with_bias else None,
        targets=targets,
        factor=factor,
        columns=columns,
    )
    laws = torch.log_softmax(factor * (hidden @ weight.t() + (bias if with_bias else 0.0)), dim=-1)
    expected = laws.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, -(laws.exp() * laws).sum(dim=-1))
    assert not entropy.requires_grad
    upstream = torch.randn(N)
    found = torch.autograd.grad(logprobs, learned, upstream)
    for ours, theirs in zip(found, torch.autograd.grad(expected, learned, upstream), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_scores_of_thousands_neither_overflow_nor_vanish() -> None:
    hidden, weight, _, targets = inputs()
    logprobs, entropy = tiled_logprobs(
        hidden=hidden, weight=weight, bias=None, targets=targets, factor=1000.0, columns=4
    )
    laws = torch.log_softmax(1000.0 * (hidden @ weight.t()), dim=-1)
    torch.testing.assert_close(logprobs, laws.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
    assert bool(entropy.isfinite().all())


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, bias, targets = inputs()
    weight.requires_grad_(False)
    bias.requires_grad_(False)
    logprobs, _ = tiled_logprobs(
        hidden=hidden, weight=weight, bias=bias, targets=targets, factor=1.0, columns=6
    )
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    assert bias.grad is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_decoders_matrix_makes_its_logits(architecture: str) -> None:
    decoder = Decoder(tiny_model(architecture), vocab_size=50)  # ids beyond it are outside of every law
    matrix = decoder.matrix()
    assert matrix is not None
    weight, bias, factor = matrix
    hidden, targets = torch.randn(6, weight.shape[1]), torch.tensor([1, 2, 3, 4, 5, 49])
    ours = tiled_logprobs(
        hidden=hidden, weight=weight, bias=bias, targets=targets, factor=factor / 0.7, columns=16
    )
    theirs = chunked_logprobs(decoder.logits, hidden=hidden, targets=targets, temperature=0.7, chunk=4)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)


def test_a_softcap_or_another_head_has_no_matrix() -> None:
    decoder = tiny_decoder("llama")
    decoder.head = nn.Sequential(decoder.head)
    assert decoder.matrix() is None
    capped = tiny_model("gemma")
    capped.config.final_logit_softcapping = 3.0
    assert Decoder(capped, vocab_size=50).matrix() is None
