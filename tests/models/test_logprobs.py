from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_model
from turnpoint.models.decoder import Decoder
from turnpoint.models.logprobs import chunked_logprobs

N, D = 11, 6


def head(vocab: int, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(D, vocab, bias=False, dtype=dtype)


def inputs(vocab: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, D, dtype=dtype, requires_grad=True), torch.randint(0, vocab, (N,))


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_log_softmax(chunk: int, temperature: float) -> None:
    linear = head(19)
    hidden, targets = inputs(19)
    upstream = torch.randn(N)
    laws = torch.log_softmax(linear(hidden) / temperature, dim=-1)
    expected = laws[torch.arange(N), targets]
    logprobs, entropy = chunked_logprobs(
        linear, hidden=hidden, targets=targets, temperature=temperature, chunk=chunk
    )
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=laws).entropy())
    assert not entropy.requires_grad
    parts = (hidden, linear.weight)
    ours = torch.autograd.grad(logprobs, parts, upstream)
    theirs = torch.autograd.grad(expected, parts, upstream)
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain)


def test_gradient_is_the_numerical_one() -> None:
    linear = head(7, torch.float64)
    hidden, targets = inputs(7, torch.float64)

    def logprobs(hidden: Tensor, weight: Tensor) -> Tensor:
        def logits(rows: Tensor) -> Tensor:
            return rows @ weight.T

        return chunked_logprobs(logits, hidden=hidden, targets=targets, temperature=0.7, chunk=4)[0]

    assert torch.autograd.gradcheck(logprobs, (hidden, linear.weight))


def test_what_is_kept_for_backward_does_not_grow_with_the_vocabulary() -> None:
    assert saved_bytes(vocab=50) == saved_bytes(vocab=5000) < 4 * N * (D + 10)


def saved_bytes(*, vocab: int) -> int:
    linear = head(vocab)
    hidden, targets = inputs(vocab)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def give(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, give):
        logprobs, _ = chunked_logprobs(linear, hidden=hidden, targets=targets, temperature=1.0, chunk=4)
    logprobs.sum().backward()
    return sum(kept.values())


def test_entropy_is_not_computed_again_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    linalg: Any = torch.linalg  # untyped
    plain: Any = linalg.vecdot

    def counted(*arguments: Tensor) -> Tensor:
        calls.append(1)
        return plain(*arguments)

    monkeypatch.setattr(torch.linalg, "vecdot", counted)
    hidden, targets = inputs(19)
    logprobs, _ = chunked_logprobs(head(19), hidden=hidden, targets=targets, temperature=1.0, chunk=4)
    assert len(calls) == 3
    logprobs.sum().backward()
    assert len(calls) == 3


def test_padded_rows_of_the_vocabulary_have_no_probability() -> None:
    """A row beyond the tokenizer may score highest; it must not take part in the law."""
    model = tiny_model(vocab_size=64)
    with torch.no_grad():
        model.get_output_embeddings().weight[60] = 100.0
    decoder = Decoder(model, vocab_size=50)
    hidden = torch.randn(5, 32, requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 49])
    logprobs, entropy = chunked_logprobs(
        decoder.logits, hidden=hidden, targets=targets, temperature=1.0, chunk=2
    )
    laws = torch.log_softmax(hidden @ decoder.head.weight[:50].T, dim=-1)
    torch.testing.assert_close(logprobs, laws[torch.arange(5), targets])
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=laws).entropy())
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())
    assert float(decoder.head.weight.grad[50:].abs().max()) == 0.0


def test_no_tokens_give_no_values() -> None:
    logprobs, entropy = chunked_logprobs(
        head(5), hidden=torch.zeros(0, D), targets=torch.zeros(0).long(), temperature=1.0, chunk=4
    )
    assert (logprobs.shape, entropy.shape) == ((0,), (0,))
