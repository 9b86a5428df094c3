from __future__ import annotations

from dataclasses import replace

import torch

from tests.training.test_layout import RUNS, call, row_by_row
from turnpoint.training.blocks import Block, block_attention
from turnpoint.training.layout import TreeLayout


def test_the_gradient_is_the_numerical_one() -> None:
    torch.manual_seed(0)
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    blocks = (  # the second reads the first's keys, of which both directions of a gap are left out
        Block(start=0, stop=3, spans=((0, 3),), hidden=hidden),
        Block(start=3, stop=6, spans=((0, 1), (2, 3), (3, 6)), hidden=hidden),
    )
    query = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    key = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)  # narrower, as in latent attention
    assert torch.autograd.gradcheck(
        lambda *inputs: block_attention(*inputs, scaling=0.7, blocks=blocks),
        (query, key, value),
        atol=1e-4,  # keys and values gather their gradients in float32
        rtol=1e-3,
    )


def test_bfloat16_is_as_near_to_float32_as_its_rounding() -> None:
    given = call()
    inputs = (given.query, given.key, given.value)
    rounded = [it.detach().bfloat16().requires_grad_() for it in inputs]
    half = replace(given, query=rounded[0], key=rounded[1], value=rounded[2])
    for dense_tokens in (0, 256):
        output = TreeLayout(RUNS, dense_tokens=dense_tokens).attend(half)
        expected = row_by_row(given)
        assert output.dtype == torch.bfloat16
        found = torch.autograd.grad(output.float().square().sum(), rounded)
        wanted = torch.autograd.grad(expected.square().sum(), inputs)
        for ours, theirs in zip((output, *found), (expected, *wanted), strict=True):
            assert (ours.float() - theirs).norm() < 0.02 * theirs.norm()


def test_backward_keeps_one_array_of_scores() -> None:
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    given = call()
    layout = TreeLayout(RUNS, dense_tokens=0)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layout.attend(given)
    inputs = sum(it.numel() for it in (given.query, given.key, given.value))
    assert sum(saved.values()) == 4 * (inputs + given.query.shape[0] * layout.scores)


def test_a_trunk_gathers_its_gradient_in_float32() -> None:
    """1,024 queries that add up in bfloat16 would lose what is below 1/256 of the sum."""
    torch.manual_seed(0)
    count, nothing = 1024, torch.zeros(1, 0, dtype=torch.bool)
    blocks = [
        Block(start=row, stop=row + 1, spans=((0, 1), (row, row + 1)) if row else ((0, 1),), hidden=nothing)
        for row in range(count)
    ]
    query, key = (torch.zeros(1, count, 2, dtype=torch.bfloat16) for _ in range(2))
    value = torch.ones(1, count, 2, dtype=torch.bfloat16, requires_grad=True)
    block_attention(query, key, value, scaling=1.0, blocks=blocks).sum().backward()
    assert value.grad is not None
    assert value.grad[0, 0, 0] == 1 + (count - 1) / 2  # each later row gives half of its weight to the first
