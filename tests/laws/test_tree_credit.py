"""Law: what each credit estimates on a tree, by enumeration of every group that can be drawn.

Two tokens, completions of three, a softmax policy with free logits at each of the seven states, float64. A
root y is drawn, cut before position p, and continuations keep y_<p. Each sampled token is trained once. Write

    slope(s, a) = d(s) pi(a | s) (Q(s, a) - V(s))

for the gradient of the expected reward in the logit of a at s; d(s) is the chance that a rollout visits s.
The expected gradient of one member's token at position t is a factor times `slope` at the states of depth t.
That factor follows from two facts: a rollout that also passes through the token brings the same slope, and
one that is independent of it, given what came before, brings nothing. With n members, of which N pass
through a token,

    mean                   1 - N / n
    leave_one_out          1 - (N - 1) / (n - 1)
    sibling_leave_one_out  1, whatever the decay; 0 before the first fork of an only root
    subtree_value          1 - N / N', N' of the piece before (or n)

Both facts need a place to fork that does not depend on the root's tokens from there on.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.records import TASK, append_policy, member, verdict
from turnpoint.credit import GroupAdvantage, SiblingAdvantage, SubtreeAdvantage
from turnpoint.protocols import Advantage
from turnpoint.types import Author, BranchOrigin, FinishReason, Group, Member, TreeBuilder

LENGTH = 3
Ids: TypeAlias = tuple[int, ...]
Forks: TypeAlias = tuple[tuple[int, int], ...]  # of a root: (position, continuations), positions rising
Shape: TypeAlias = tuple[Forks, ...]  # of a group, by root
Rule: TypeAlias = Callable[[Ids], Forks]  # where a root that was drawn forks
Slopes: TypeAlias = npt.NDArray[np.float64]  # [states, 2], in the logits

WHOLE: list[Ids] = list(itertools.product(range(2), repeat=LENGTH))
STATES: list[Ids] = [ids for n in range(LENGTH) for ids in itertools.product(range(2), repeat=n)]
ROW = {state: row for row, state in enumerate(STATES)}
LOGITS = np.random.Generator(np.random.Philox(1)).normal(0.0, 1.0, (len(STATES), 2))
LAW = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
REWARDS = dict(zip(WHOLE, (420.0 * it for it in (1, 0, 0, 1, 0, 1, 0, 0)), strict=True))
# 420 for a success: a mean of up to seven is a whole number, and credits, which are float32, are exact.

CREDITS: dict[str, Advantage] = {
    "mean": GroupAdvantage(),
    "leave_one_out": GroupAdvantage(baseline="leave_one_out"),
    "sibling, decay 0": SiblingAdvantage(decay=0.0),
    "sibling, decay 1/2": SiblingAdvantage(decay=0.5),
    "sibling, decay 1": SiblingAdvantage(decay=1.0),
    "subtree_value": SubtreeAdvantage(),
}
SHAPES: dict[str, Shape] = {
    "flat": ((), (), ()),
    "one root": (((1, 2),),),
    "one root, late": (((2, 2),),),
    "one root, two points": (((1, 1), (2, 1)),),
    "two roots": (((1, 1),), ((1, 1),)),
    "two roots, one forks": (((1, 2),), ()),
    "two roots, two points": (((1, 1), (2, 2)), ()),
    "two roots, apart": (((2, 2),), ((1, 1),)),
}


# --- the policy ---------------------------------------------------------------------------------


@functools.cache
def chance(ids: Ids, start: int = 0) -> float:
    """The probability of ids[start:] after ids[:start]."""
    return math.prod(float(LAW[ROW[ids[:t]], ids[t]]) for t in range(start, len(ids)))


def value(prefix: Ids) -> float:
    """The expected reward from `prefix` on: V, and Q where it ends in an action."""
    starts = [ids for ids in WHOLE if ids[: len(prefix)] == prefix]
    return sum(chance(ids, len(prefix)) * REWARDS[ids] for ids in starts)


def in_logits(weights: Slopes) -> Slopes:
    """Turns the weight of each log pi(a | s) into a gradient: d log pi(a | s) / d logit b = [a = b] - pi."""
    return weights - LAW * weights.sum(1, keepdims=True)


def slope(visits: Callable[[Ids], float] = chance) -> Slopes:
    """Returns d(s) pi(a | s) (Q(s, a) - V(s)), with `visits` as d."""
    gain = np.array([[value((*state, a)) - value(state) for a in range(2)] for state in STATES])
    return np.array([[visits(state)] for state in STATES]) * LAW * gain


# --- all groups ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A member of a group: what it says, where it begins, and from whom."""

    ids: Ids
    start: int = 0
    root: int = 0


def families(root: Ids, index: int, forks: Forks) -> Iterator[tuple[list[Drawn], float]]:
    """Yields the continuations of a root and their probability."""
    places = [position for position, count in forks for _ in range(count)]
    endings = (itertools.product(range(2), repeat=LENGTH - position) for position in places)
    for drawn in itertools.product(*endings):
        found = [Drawn((*root[:at], *end), at, index) for at, end in zip(places, drawn, strict=True)]
        yield found, math.prod(chance(it.ids, it.start) for it in found)


def all_groups(rules: Sequence[Rule]) -> Iterator[tuple[list[Drawn], float]]:
    """Yields all groups, roots first, with their probabilities; a rule says where its root forks."""
    for roots in itertools.product(WHOLE, repeat=len(rules)):
        whole = [Drawn(ids) for ids in roots]
        grown = (
            families(ids, index, rule(ids))
            for index, (ids, rule) in enumerate(zip(roots, rules, strict=True))
        )
        for parts in itertools.product(*grown):
            members = [*whole, *(it for found, _ in parts for it in found)]
            likely = math.prod(map(chance, roots)) * math.prod(p for _, p in parts)
            yield members, likely


def fixed(shape: Shape) -> list[Rule]:
    return [lambda _, forks=forks: forks for forks in shape]


@functools.cache
def credited(name: str, places: tuple[tuple[int, int], ...], rewards: tuple[float, ...]) -> list[list[float]]:
    """Returns the advantages by member; credits see rewards and places, never tokens."""
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5])
    members: list[Member] = []
    for (start, root), reward in zip(places, rewards, strict=True):
        parent = members[root].leaf if start else prompt
        cut = start if start else None
        leaf = append_policy(tree, parent=parent, parent_length=cut, token_ids=[0] * (LENGTH - start))
        made = member(leaf, (leaf,), verdict(reward))
        if start:
            origin = BranchOrigin(root=root, position=start, rule="random", score=0.0)
            made = Member(
                leaf=leaf,
                segments=(leaf,),
                text="",
                verdict=made.verdict,
                finish=FinishReason.STOP,
                origin=origin,
            )
        members.append(made)
    group = Group(id="0/0", task=TASK, tree=tree.freeze(), members=tuple(members))
    found = [it.advantages for it in CREDITS[name].credit(group)]
    return [[] if it is None else it.tolist() for it in found]


def expected(name: str, rules: Sequence[Rule]) -> list[Slopes]:
    """Returns the expected gradient of sum_t A_t log pi(token t) over what each member sampled."""
    total: list[list[list[float]]] = []
    for members, likely in all_groups(rules):
        places = tuple((it.start, it.root) for it in members)
        advantages = credited(name, places, tuple(REWARDS[it.ids] for it in members))
        total = total or [[[0.0, 0.0] for _ in STATES] for _ in members]
        for weights, it, own in zip(total, members, advantages, strict=True):
            for t, advantage in enumerate(own, start=it.start):
                weights[ROW[it.ids[:t]]][it.ids[t]] += likely * advantage
    return [in_logits(np.array(weights)) for weights in total]


# --- what theory says ---------------------------------------------------------------------------


def factors(name: str, shape: Shape) -> list[list[float]]:
    """Returns by member the factor of each position, 0 for what it did not sample."""
    n = len(shape) + sum(count for forks in shape for _, count in forks)
    rows = [[root_factor(name, shape, forks, n, t) for t in range(LENGTH)] for forks in shape]
    for forks in shape:
        for position, count in forks:
            before = through(forks, position - 1)  # of the piece that the continuation passed through
            factor = {"mean": 1 - 1 / n, "subtree_value": 1 - 1 / before}.get(name, 1.0)
            rows += [[0.0] * position + [factor] * (LENGTH - position)] * count
    return rows


def through(forks: Forks, t: int) -> int:
    """How many rollouts pass through the token t of a root: itself and what forks later."""
    return 1 + sum(count for position, count in forks if position > t)


def root_factor(name: str, shape: Shape, forks: Forks, n: int, t: int) -> float:
    passing, passed = through(forks, t), [position for position, _ in forks if position <= t]
    match name:
        case "mean":
            return 1 - passing / n
        case "leave_one_out":
            return 1 - (passing - 1) / (n - 1)
        case "subtree_value":
            return 1 - passing / (through(forks, passed[-1] - 1) if passed else n)
        case _:
            return float(len(shape) > 1 or bool(passed))


def by_depth(factors: Sequence[float]) -> Slopes:
    """The slopes, each times the factor of its state's depth."""
    return np.array([[factors[len(state)]] for state in STATES]) * slope()


def close(found: Slopes, wanted: Slopes) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


def test_slopes_are_the_gradient_of_the_expected_reward() -> None:
    logits = torch.tensor(LOGITS, requires_grad=True)
    law = logits.log_softmax(-1)
    logprobs = [sum(law[ROW[ids[:t]], ids[t]] for t in range(LENGTH)) for ids in WHOLE]
    reward = sum(torch.as_tensor(it).exp() * REWARDS[ids] for it, ids in zip(logprobs, WHOLE, strict=True))
    (gradient,) = torch.autograd.grad(torch.as_tensor(reward), [logits])
    close(slope(), gradient.numpy())
    assert all(np.abs(by_depth([float(t == at) for at in range(LENGTH)])).max() > 1 for t in range(LENGTH))


@pytest.mark.parametrize("shape", SHAPES)
def test_probabilities_add_up(shape: str) -> None:
    assert sum(p for _, p in all_groups(fixed(SHAPES[shape]))) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CREDITS)
def test_every_token_gets_its_slope_times_the_factor_of_its_credit(name: str, shape: str) -> None:
    wanted = factors(name, SHAPES[shape])
    for found, row in zip(expected(name, fixed(SHAPES[shape])), wanted, strict=True):
        close(found, by_depth(row))


@pytest.mark.parametrize("name", CREDITS)
def test_a_point_that_is_drawn_apart_from_the_root_changes_nothing(name: str) -> None:
    """With probability 0.3 before token 1, else before token 2: the mixture of both laws."""
    mixed = np.zeros_like(slope())
    wanted = np.zeros_like(slope())
    for likely, position in ((0.3, 1), (0.7, 2)):
        shape: Shape = (((position, 1),), ())
        mixed += likely * sum(expected(name, fixed(shape)))
        rows = np.sum(factors(name, shape), axis=0)
        wanted += likely * by_depth(rows.tolist())
    close(mixed, wanted)


DEFAULT = {  # 2 x (1 + 4 + 3): a root's pieces, then the suffixes of the fours and of the threes
    "mean": [1 / 2, 3 / 4, 15 / 16, 15 / 16, 15 / 16],
    "leave_one_out": [8 / 15, 12 / 15, 1, 1, 1],
    "sibling, decay 1/2": [1, 1, 1, 1, 1],
    "subtree_value": [1 / 2, 1 / 2, 3 / 4, 7 / 8, 3 / 4],
}


@pytest.mark.parametrize("name", DEFAULT)
def test_the_factors_of_the_default_shape(name: str) -> None:
    """Too many groups to enumerate. Credits are linear in rewards, so that a token's factor is what it gets
    where all that pass through it earn 1 and all others nothing."""
    places = [(0, 0), (0, 1)] + [(at, root) for root in (0, 1) for at in (1, 1, 1, 1, 2, 2, 2)]

    def factor(who: int, t: int) -> float:
        through = [it for it, (at, root) in enumerate(places) if at > t and root == who] if who < 2 else []
        earned = [float(it in (who, *through)) for it in range(len(places))]
        start = places[who][0]
        return credited(name, tuple(places), tuple(earned))[who][t - start]

    pieces = [factor(0, 0), factor(0, 1), factor(0, 2), factor(2, 1), factor(6, 2)]
    assert pieces == pytest.approx(DEFAULT[name], abs=1e-6)


# --- where the point depends on the root --------------------------------------------------------

Place: TypeAlias = Callable[[Ids], int]


def _entropy(ids: Ids) -> int:
    """The token whose law has most entropy."""
    return max((1, 2), key=lambda at: -float(LAW[ROW[ids[:at]]] @ np.log(LAW[ROW[ids[:at]]])))


def _surprisal(ids: Ids) -> int:
    """The token that was least likely."""
    return min((1, 2), key=lambda at: LAW[ROW[ids[:at]], ids[at]])


def _outcome(ids: Ids) -> int:
    """Early in a root that failed, late in one that did not: as hindsight can."""
    return 2 if REWARDS[ids] else 1


def _first_unsure(ids: Ids) -> int:
    """The first token whose law is open enough: decided by what comes before it alone."""
    return 1 if LAW[STATES.index(ids[:1])].max() < 0.7 else 2


PLACES: dict[str, Place] = {"entropy": _entropy, "surprisal": _surprisal, "outcome": _outcome}


def dependent(place: Place, count: int = 2) -> list[Rule]:
    """Returns two roots, the first of which forks where `place` says."""
    return [lambda ids: ((place(ids), count),), lambda _: ()]


def test_the_places_depend_on_the_root() -> None:
    for place in (*PLACES.values(), _first_unsure):
        assert {place(ids) for ids in WHOLE} == {1, 2}
    for place in PLACES.values():  # not on what comes before the point alone
        assert any(place(a) != place(b) for a in WHOLE for b in WHOLE if a[:1] == b[:1])
    assert all(_first_unsure(a) == _first_unsure(b) for a in WHOLE for b in WHOLE if a[:1] == b[:1])


@pytest.mark.parametrize("place", [*PLACES, "first unsure"])
@pytest.mark.parametrize("name", CREDITS)
def test_suffixes_stay_true_to_the_states_that_were_chosen(name: str, place: str) -> None:
    """Given root and point, suffixes are fresh: their law holds with d(s) of the points that were chosen."""
    chosen = {**PLACES, "first unsure": _first_unsure}[place]

    def visits(state: Ids) -> float:
        kept = ((ids, chosen(ids)) for ids in WHOLE)
        return sum(
            chance(ids) * chance(state, at) for ids, at in kept if len(state) >= at and state[:at] == ids[:at]
        )

    factor = {"mean": 1 - 1 / 4, "subtree_value": 1 - 1 / 3}.get(name, 1.0)
    for found in expected(name, dependent(chosen))[2:]:
        close(found, factor * slope(visits))


SEES_SIBLINGS = [name for name in CREDITS if name.startswith("sibling")]


@pytest.mark.parametrize("name", SEES_SIBLINGS)
def test_a_point_that_looks_back_only_leaves_the_root_unbiased(name: str) -> None:
    close(expected(name, dependent(_first_unsure))[0], slope())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["leave_one_out", *SEES_SIBLINGS])
def test_a_point_that_looks_ahead_biases_its_root_by_a_known_amount(name: str, place: str) -> None:
    """The root's tokens meet a baseline that knows where it forked: E[V(kept)] stands for its continuations.

    Their reward is replaced by its mean given the root, which is exact, and nothing cancels any more.
    """
    weights = np.zeros((len(STATES), 2))
    for ids in WHOLE:
        at = PLACES[place](ids)
        reward, kept, other = REWARDS[ids], value(ids[:at]), value(())
        for t in range(LENGTH):
            match name:
                case "leave_one_out":
                    advantage = reward - (2 * kept + other) / 3
                case _:
                    decay = {"0": 0.0, "1/2": 0.5, "1": 1.0}[name.rpartition(" ")[2]]
                    carried = decay ** (at - t) * (reward - kept) if t < at else 0.0
                    advantage = (reward - other if t < at else reward - kept) + carried
            weights[ROW[ids[:t]], ids[t]] += chance(ids) * advantage
    found, other_root, *_ = expected(name, dependent(PLACES[place]))
    close(found, in_logits(weights))
    fixed_points = [factors(name, (((at, 2),), ()))[0] for at in (1, 2)]
    assert all(np.abs(found - by_depth(row)).max() > 1.0 for row in fixed_points)
    if name != "leave_one_out":
        close(other_root, slope())
