"""Accept length from a rollout: against speculation itself, every draft and every rejection enumerated."""

from __future__ import annotations

import functools
import math
import random
from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from turnpoint.drafting import accept_length

Text: TypeAlias = tuple[int, ...]
Law: TypeAlias = Callable[[Text], list[float]]  # of the next of three tokens; 0 ends a text


def by_speculating(target: Law, draft: Law, *, gamma: int, longest: int) -> dict[Text, tuple[float, float]]:
    """Returns the probability of each text, and the rounds that it takes in the mean."""
    found: dict[Text, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def ended(text: Text) -> bool:
        return len(text) == longest or text[-1:] == (0,)

    def walk(text: Text, weight: float, rounds: int, drafted: int) -> None:
        if ended(text):
            found[text][0] += weight
            found[text][1] += weight * rounds
            return
        p, q = target(text), draft(text)
        if drafted == min(gamma, longest - 1 - (len(text) - drafted)):
            for token in range(3):
                begin((*text, token), weight * p[token], rounds)
            return
        left = [max(mine - its, 0.0) for mine, its in zip(p, q, strict=True)]
        for token in range(3):
            kept = min(1.0, p[token] / q[token])
            walk((*text, token), weight * q[token] * kept, rounds, drafted + 1)
            for other in range(3):
                lost = weight * q[token] * (1 - kept) * left[other]
                begin((*text, other), lost / sum(left) if lost else 0.0, rounds)

    def begin(text: Text, weight: float, rounds: int) -> None:
        if weight:
            walk(text, weight, rounds + (not ended(text)), 0)

    begin((), 1.0, 0)
    return {text: (weight, rounds / weight) for text, (weight, rounds) in found.items()}


def law_of(seed: int) -> Law:
    @functools.cache
    def law(text: Text) -> list[float]:
        draws = random.Random(f"{seed} {text}")
        masses = [math.exp(draws.gauss(0, 1.5)) for _ in range(3)]
        return [mass / sum(masses) for mass in masses]

    return law


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


@pytest.mark.parametrize(("gamma", "longest"), [(1, 4), (2, 4), (3, 4), (4, 3)])
def test_speculation_enumerated(gamma: int, longest: int) -> None:
    """Texts end by a token of theirs, also inside of a block, or at the longest length."""
    target, draft = law_of(1), law_of(2)
    found = by_speculating(target, draft, gamma=gamma, longest=longest)
    assert len(found) == sum(2**n for n in range(longest)) + 2**longest
    for text, (weight, rounds) in found.items():
        own = torch.tensor([target(text[:at])[token] for at, token in enumerate(text)]).double()
        assert weight == pytest.approx(float(own.prod()), rel=1e-6)
        q = torch.tensor([draft(text[:at])[token] for at, token in enumerate(text)]).double()
        places = torch.arange(len(text)).unsqueeze(1) + torch.arange(gamma)
        logprobs = q.log()[places.clamp(max=len(text) - 1)]
        length = accept_length(target_logprobs=own.log(), draft_logprobs=logprobs)
        assert length == pytest.approx(len(text) / rounds, rel=1e-6)


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
