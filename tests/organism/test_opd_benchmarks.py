"""What the distillation benchmarks rest on: noise by enumeration, kinds of problems, a top-k value."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
import torch
from benchmarks.opd_variance import Laws, hybrid, signal
from benchmarks.organism.language import apply
from benchmarks.organism.specialists import KINDS, problems_of
from benchmarks.organism.topk_value import topk_values

from tests.engine.serve import make_engine
from tests.tiny import tiny_decoder, tiny_model
from turnpoint.types import token_array


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_noise_by_formula_is_that_of_all_draws(k: int) -> None:
    draw = torch.Generator().manual_seed(k)
    student, teacher = torch.randn(2, 1, 6, generator=draw)
    laws = Laws.of(student, teacher)
    exact = laws.noise(torch.where(laws.inside(k), 0.0, laws.gap))
    gradients: list[torch.Tensor] = []
    for token in range(6):
        ids = torch.tensor([token])
        if k:
            gradients.append(hybrid(k).gradient(student, teacher, ids)[0])
        else:
            leaf = student.clone().requires_grad_()
            values = signal(leaf, teacher, ids, baseline=False)
            gradients.append(torch.autograd.grad(values.sum(), leaf)[0][0])
    every = torch.stack(gradients).double()
    mean = laws.p @ every
    torch.testing.assert_close(mean, laws.gradient, atol=1e-6, rtol=0)
    spread = (laws.p @ (every - mean).square().sum(-1)).clamp(min=0.0)
    torch.testing.assert_close(exact, spread, atol=1e-6, rtol=0)


def test_a_kind_of_problem_has_one_misconception_alone() -> None:
    wrong = {operation for operation, _ in KINDS.values()} | {"*7"}
    for kind, (operation, (low, high)) in KINDS.items():
        for problem in itertools.islice(problems_of(kind, seed=0), 50):
            assert wrong & {*problem.operations} == {operation}
            assert low <= len(problem.operations) <= high
            assert apply(problem.operations[0], problem.start) in range(10)


def test_the_value_is_the_renormalised_sum_over_the_policys_top_tokens() -> None:
    ids, start = token_array([20, 21, 22, 23]), 2
    policy, teacher = (make_engine(tiny_decoder(seed=seed)) for seed in (0, 1))
    found = asyncio.run(topk_values(policy, teacher, "r", ids, start))
    laws: list[np.ndarray] = []
    for seed in (0, 1):
        with torch.no_grad():
            logits = tiny_model(seed=seed)(input_ids=torch.tensor([ids.tolist()])).logits[0, start - 1 : -1]
        laws.append(torch.log_softmax(logits.float(), -1).numpy())
    for row in range(2):
        top = np.argsort(-laws[0][row])[:16]
        weights = np.exp(laws[0][row][top])
        expected = (weights * (laws[0][row][top] - laws[1][row][top])).sum() / weights.sum()
        assert found[row] == pytest.approx(expected, abs=1e-4)
