"""Accept length from a rollout: against enumeration of every way a text can fall into rounds."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from turnpoint.drafting import accept_length


def by_walking(ratios: Tensor, rounds: int, seed: int) -> float:
    """Returns tokens per round of a simulation that accepts each token with its ratio."""
    length, gamma = ratios.shape
    coins, used = random.Random(seed), 0
    for _ in range(rounds):
        at = 0
        while at < length:
            taken = 0
            while taken < gamma and at + taken < length and coins.random() < float(ratios[at, taken]):
                taken += 1
            at, used = at + taken + 1, used + 1
    return length * rounds / used


def test_extremes() -> None:
    target = torch.log(torch.full((12,), 0.5))
    same, never = target.unsqueeze(1).expand(12, 3), torch.full((12, 3), -torch.inf)
    assert accept_length(target_logprobs=target, draft_logprobs=same) == pytest.approx(4)
    assert accept_length(target_logprobs=target, draft_logprobs=never) == pytest.approx(1)
    assert accept_length(target_logprobs=target, draft_logprobs=torch.zeros(12, 0)) == 1


def test_two_tokens_by_hand() -> None:
    """A draft of the first is kept half the time, and then the round emits the second, too."""
    target, draft = torch.tensor([0.4, 0.4]).log(), torch.tensor([[0.2], [0.4]]).log()
    assert accept_length(target_logprobs=target, draft_logprobs=draft) == pytest.approx(2 / 1.5)


def test_what_lies_past_the_end_is_not_read() -> None:
    target = torch.tensor([0.3, 0.6, 0.5]).log()
    draft = torch.tensor([[0.2, 0.3, 0.1], [0.5, 0.1, torch.nan], [0.1, torch.nan, torch.nan]]).log()
    assert 1 < accept_length(target_logprobs=target, draft_logprobs=draft) < 3


def test_as_speculating_would_count() -> None:
    draws = torch.Generator().manual_seed(0)
    ratios = 0.3 + 0.7 * torch.rand(14, 3, generator=draws)
    target = torch.log(0.1 + 0.5 * torch.rand(14, generator=draws))
    steps = torch.arange(14).unsqueeze(1) + torch.arange(3)
    draft = target[steps.clamp(max=13)] + ratios.log()
    exact = accept_length(target_logprobs=target, draft_logprobs=draft)
    assert by_walking(ratios, 4000, seed=1) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("targets", "starts"), [(0, 0), (3, 2)])
def test_texts_that_do_not_fit_are_refused(targets: int, starts: int) -> None:
    with pytest.raises(ValueError, match=f"{targets} log-probabilities.* {starts} starts"):
        accept_length(target_logprobs=torch.zeros(targets), draft_logprobs=torch.zeros(starts, 2))
