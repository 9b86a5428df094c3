"""Laws: speculative decoding emits the target's law, by enumeration of every draft and every coin.

The verifier is a black box: it answers by comparing coins with thresholds, which are found by bisection, so
that the probability of each answer is a length and nothing is left to chance. Rounds go on until three
tokens are there.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from turnpoint.engine.filters import Filters
from turnpoint.engine.verification import MODES, verify_chain, verify_chains

Prefix: TypeAlias = tuple[int, ...]
Law: TypeAlias = Callable[[Prefix], Tensor]  # of the next token
Verify: TypeAlias = Callable[..., tuple[Tensor, Tensor]]

Cut: TypeAlias = dict[str, Any]  # what a filter leaves

CUTS: list[Cut] = [{"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.8}]
TOKENS = 3  # whose joint law is compared
GAMMA = 2
_HALVINGS = 30
_ONE = 1 - 2**-45  # the largest coin


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a round drafts and verifies: tokens are drawn from `drawn`, the verifier is told `told`."""

    target: Law
    drawn: Law
    told: Law
    verify: Verify
    first_failure: bool  # ends a round; else the longest prefix that passes counts
    length: Callable[[Prefix, Prefix], int] = lambda prefix, chain: len(chain)  # of a chain that is verified


def law_of(size: int, seed: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Law:
    """Returns a law over `size` ids that depends on all tokens before."""
    filters = Filters(top_k=np.array([top_k]), top_p=np.array([top_p]))

    @cache
    def law(prefix: Prefix) -> Tensor:
        number = sum((token + 1) * 11**place for place, token in enumerate(prefix))
        draws = torch.Generator().manual_seed(1000 * seed + number)
        logits = 1.5 * torch.randn(size, generator=draws, dtype=torch.float64)
        return filters(softened(logits, temperature).unsqueeze(0))[0]

    return law


def softened(logits: Tensor, temperature: float) -> Tensor:
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    return torch.softmax(logits / temperature, 0)


def likeliest(law: Law) -> Law:
    """Returns all mass on the likeliest token of `law`."""

    @cache
    def most(prefix: Prefix) -> Tensor:
        return softened(law(prefix), 0)

    return most


def joint_law(case: Case, size: int) -> dict[Prefix, float]:
    """Returns the probability of each sequence of `TOKENS` tokens that rounds of `case` emit."""
    prefixes = [prefix for n in range(TOKENS) for prefix in itertools.product(range(size), repeat=n)]
    rounds = round_laws(case, prefixes, size)
    joint: dict[Prefix, float] = defaultdict(float)

    def walk(prefix: Prefix, weight: float) -> None:
        if len(prefix) >= TOKENS:
            joint[prefix[:TOKENS]] += weight
            return
        for emitted, probability in rounds[prefix].items():
            walk(prefix + emitted, weight * probability)

    walk((), 1.0)
    return joint


def round_laws(case: Case, prefixes: list[Prefix], size: int) -> dict[Prefix, dict[Prefix, float]]:
    """Returns, for each prefix, the probability of what one round emits."""
    chains = list(itertools.product(range(size), repeat=GAMMA))

    def along(law: Law, prefix: Prefix, chain: Prefix, rows: int) -> Tensor:
        return torch.stack([law(prefix + chain[:at]) for at in range(rows)])

    def weight(prefix: Prefix, chain: Prefix) -> float:
        return math.prod(
            float(law[token])
            for law, token in zip(along(case.drawn, prefix, chain, GAMMA), chain, strict=True)
        )

    pairs = [pair for pair in itertools.product(prefixes, chains) if weight(*pair) > 0]
    given: dict[str, Any] = {
        "target_probs": torch.stack([along(case.target, *pair, GAMMA + 1) for pair in pairs]),
        "draft_probs": torch.stack([along(case.told, *pair, GAMMA) for pair in pairs]),
        "draft_ids": torch.tensor([chain for _, chain in pairs]),
        "lengths": torch.tensor([case.length(*pair) for pair in pairs]),
    }
    counts, nexts = outcome_laws(case, given, size)
    found: dict[Prefix, dict[Prefix, float]] = {prefix: defaultdict(float) for prefix in prefixes}
    for row, (prefix, chain) in enumerate(pairs):
        for accepted, token in itertools.product(range(GAMMA + 1), range(size)):
            probability = float(counts[row, accepted] * nexts[accepted][row, token])
            found[prefix][(*chain[:accepted], token)] += weight(prefix, chain) * probability
    return {prefix: {k: v for k, v in law.items() if v > 0} for prefix, law in found.items()}


def outcome_laws(case: Case, given: dict[str, Any], size: int) -> tuple[Tensor, list[Tensor]]:
    """Returns P(number accepted), [n, GAMMA + 1], and per number the law of the next token, [n, V]."""
    n = len(given["draft_ids"])

    def answers(coins: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        return case.verify(**given, uniforms=torch.cat([coins, last.unsqueeze(1)], 1))

    def others(at: int) -> Tensor:
        """Coins under which only coin `at` decides whether the drafts up to it are taken."""
        idle = torch.full((n, GAMMA), _ONE, dtype=torch.float64)
        return idle.index_fill(1, torch.arange(at), 0.0) if case.first_failure else idle

    half = torch.full((n,), 0.5, dtype=torch.float64)
    passes = torch.stack(
        [
            bisect(
                n,
                lambda u, at=at: (
                    answers(others(at).index_copy(1, torch.tensor([at]), u.unsqueeze(1)), half)[0] > at
                ),
            )
            for at in range(GAMMA)
        ],
        1,
    )
    fails = 1 - passes
    one = torch.ones(n, 1, dtype=torch.float64)
    if case.first_failure:
        counts = torch.cat([one, passes.cumprod(1)], 1) * torch.cat([fails, one], 1)
    else:
        later = torch.cat([fails.flip(1).cumprod(1).flip(1), one], 1)
        counts = torch.cat([one, passes], 1) * later
    return counts, [next_law(case, given, accepted, size) for accepted in range(GAMMA + 1)]


def forced(case: Case, n: int, accepted: int) -> Tensor:
    """Returns coins that accept so many, wherever that can happen."""
    coins = torch.full((n, GAMMA), _ONE, dtype=torch.float64)
    taken = torch.arange(accepted) if case.first_failure else torch.arange(accepted)[-1:]
    return coins.index_fill(1, taken, 0.0)


def next_law(case: Case, given: dict[str, Any], accepted: int, size: int) -> Tensor:
    """Returns the law of the token behind so many accepted ones, [n, size]."""
    n, tokens = len(given["draft_ids"]), torch.arange(size)
    wide = {name: it.repeat_interleave(size, 0) for name, it in given.items()}
    coins = forced(case, n * size, accepted)

    def below(last: Tensor) -> Tensor:
        following = case.verify(**wide, uniforms=torch.cat([coins, last.unsqueeze(1)], 1))[1]
        return following <= tokens.repeat(n)

    edges = bisect(n * size, below).view(n, size)
    return torch.cat([torch.zeros(n, 1, dtype=torch.float64), edges], 1).diff(dim=1)


def bisect(n: int, holds: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns up to where in [0, 1] each of n conditions holds, which it does from 0 on or nowhere."""
    low, high = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = holds(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def distance(case: Case, size: int) -> float:
    """Returns the total variation between what rounds emit and what the target would."""
    joint = joint_law(case, size)
    assert sum(joint.values()) == pytest.approx(1, abs=1e-9)
    exact = {
        tokens: float(
            torch.stack([case.target(tokens[:at])[token] for at, token in enumerate(tokens)]).prod()
        )
        for tokens in itertools.product(range(size), repeat=TOKENS)
    }
    return sum(abs(joint.get(tokens, 0.0) - probability) for tokens, probability in exact.items()) / 2


def verifying(mode: str) -> Verify:
    return partial(verify_chains, mode=mode)


def case_of(mode: str, target: Law, draft: Law) -> Case:
    """The right way to use a mode."""
    drawn = likeliest(draft) if mode == "target_only" else draft
    return Case(target=target, drawn=drawn, told=draft, verify=verifying(mode), first_failure=mode != "block")


# --- exact --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_rounds_emit_the_law_of_the_target_over_six_ids(mode: str) -> None:
    assert distance(case_of(mode, law_of(6, 1), law_of(6, 2)), 6) < 1e-7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_at_every_temperature(mode: str, temperature: float) -> None:
    """The draft is at another one."""
    case = case_of(mode, law_of(4, 3, temperature=temperature), law_of(4, 4, temperature=0.8))
    assert distance(case, 4) < 1e-7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("cut", CUTS)
def test_at_every_temperature_and_filter_over_six_ids(mode: str, temperature: float, cut: Cut) -> None:
    """The draft has the same filter, and a temperature of its own."""
    target, draft = law_of(6, 3, temperature=temperature, **cut), law_of(6, 4, temperature=0.8, **cut)
    assert distance(case_of(mode, target, draft), 6) < 1e-7


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", CUTS)
def test_a_draft_without_the_filter_is_exact_too(mode: str, cut: Cut) -> None:
    assert distance(case_of(mode, law_of(4, 3, **cut), law_of(4, 4)), 4) < 1e-7


@pytest.mark.parametrize("mode", MODES)
def test_a_draft_that_is_the_target_is_exact_too(mode: str) -> None:
    law = law_of(4, 5)
    assert distance(case_of(mode, law, law), 4) < 1e-7


def test_a_depth_chosen_by_the_law_of_a_draft_is_exact() -> None:
    draft = law_of(4, 7)

    def by_law(prefix: Prefix, chain: Prefix) -> int:
        return 1 if float(draft(prefix + chain[:1]).max()) < 0.6 else 2

    case = case_of("token", law_of(4, 6), draft)
    assert distance(replace(case, length=by_law), 4) < 1e-7


def test_block_verification_accepts_no_fewer() -> None:
    gains: list[float] = []
    for seed in range(3):
        accepted = [
            mean_accepted(case_of(mode, law_of(4, seed), law_of(4, 50 + seed))) for mode in ("token", "block")
        ]
        gains.append(accepted[1] - accepted[0])
    assert min(gains) >= -1e-9
    assert max(gains) > 1e-3


def mean_accepted(case: Case) -> float:
    return sum((len(emitted) - 1) * p for emitted, p in round_laws(case, [()], 4)[()].items())


# --- known wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [{}, *CUTS])
def test_resampling_from_the_target_after_a_rejection_is_another_law(cut: Cut) -> None:
    def wrong(**given: Any) -> tuple[Tensor, Tensor]:
        accepted, _ = verify_chains(**given)
        law = given["target_probs"][torch.arange(len(accepted)), accepted]
        cumulative = law.cumsum(1)
        return accepted, torch.searchsorted(
            cumulative, given["uniforms"][:, -1:].contiguous(), right=True
        ).squeeze(1)

    case = case_of("token", law_of(4, 1, **cut), law_of(4, 2, **cut))
    assert distance(replace(case, verify=wrong), 4) > 0.01


@pytest.mark.parametrize("mode", ["token", "block"])
@pytest.mark.parametrize("cut", [{}, *CUTS])
def test_an_argmax_draft_tested_against_a_soft_law_is_another_law(mode: str, cut: Cut) -> None:
    draft = law_of(4, 2, **cut)
    case = case_of(mode, law_of(4, 1, **cut), draft)
    assert distance(replace(case, drawn=likeliest(draft)), 4) > 0.01


@pytest.mark.parametrize("cut", [{}, *CUTS])
def test_dropping_a_token_by_its_own_draw_is_another_law(cut: Cut) -> None:
    draft = law_of(4, 2, **cut)

    def by_draw(prefix: Prefix, chain: Prefix) -> int:
        kept = [float(draft(prefix + chain[:at])[token]) > 0.5 for at, token in enumerate(chain)]
        return len(list(itertools.takewhile(bool, kept)))

    case = case_of("token", law_of(4, 1, **cut), draft)
    assert distance(replace(case, length=by_draw), 4) > 0.01


# --- one chain ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_one_chain_is_a_batch_of_one(mode: str) -> None:
    draws = torch.Generator().manual_seed(0)
    target, draft = (torch.rand(50, rows, 5, generator=draws).softmax(-1) for rows in (4, 3))
    ids, coins = torch.randint(5, (50, 3), generator=draws), torch.rand(50, 4, generator=draws)
    batch: dict[str, Tensor] = {
        "target_probs": target,
        "draft_probs": draft,
        "draft_ids": ids,
        "uniforms": coins,
    }
    accepted, following = verify_chains(**batch, lengths=torch.full((50,), 3), mode=mode)
    singles = [verify_chain(**{name: it[row] for name, it in batch.items()}, mode=mode) for row in range(50)]
    assert [it[0] for it in singles] == [int(it) for it in accepted]
    assert [it[1] for it in singles] == [int(it) for it in following]
    assert len({it[0] for it in singles}) > 1
