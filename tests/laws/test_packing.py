"""Laws of packing: each sampled token trains exactly once, predicted from exactly what came before it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.groups import A, E, Item, P, Shape, listed, make_credits, make_group, pack
from turnpoint.training import PackedTree
from turnpoint.types import Author


@dataclass(frozen=True)
class Sketch:
    """What `build` makes a group of; strategies must not run type-checked code, which draws at random."""

    shape: Shape
    seed: int
    invalid: tuple[int, ...]


@st.composite
def sketches(draw: st.DrawFn) -> Sketch:
    """Returns any shape: each segment hangs anywhere, each POLICY segment ends a member."""
    segments: list[tuple[int | None, int, Author, int]] = [(None, 0, P, draw(st.integers(1, 5)))]
    for _ in range(draw(st.integers(1, 9))):
        parent = draw(st.integers(0, len(segments) - 1))
        length = draw(st.integers(1 if parent == 0 else 0, segments[parent][3]))
        author = draw(st.sampled_from([A, A, A, E]))
        segments.append((parent, length, author, draw(st.integers(1, 6))))
    members = tuple((index,) for index, it in enumerate(segments) if it[2] is A)
    invalid = draw(st.sets(st.integers(0, 9)))
    return Sketch(Shape(tuple(segments), members), draw(st.integers(0, 10)), tuple(sorted(invalid)))


steps = st.lists(sketches(), min_size=1, max_size=3)


def build(some: list[Sketch]) -> list[Item]:
    groups = [make_group(it.shape, seed=it.seed, vocab=1000, invalid=it.invalid) for it in some]
    return [(group, make_credits(group, seed=it.seed)) for group, it in zip(groups, some, strict=True)]


def paths(tree: PackedTree) -> list[tuple[int, ...]]:
    """Returns for each trained token all ids before it and itself, as the attention layout shows them."""
    before: dict[int, list[int]] = {}
    for run in tree.runs:
        places = [place for start, stop in run.ancestors for place in range(start, stop)]
        for place in range(run.start, run.stop):
            before[place] = places = [*places, place]
            assert int(tree.positions[place]) == len(places) - 1
    return [
        (*listed(tree.token_ids[before[predictor]]), target)
        for predictor, target in zip(listed(tree.predictors), listed(tree.targets), strict=True)
    ]


@given(steps, st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_every_weighted_token_of_a_valid_member_trains_once_after_its_own_path(
    some: list[Sketch], budget: int
) -> None:
    items = build(some)
    step = pack(items, max_tokens=budget)
    expected: Counter[tuple[tuple[int, ...], float, float]] = Counter()
    for group, credits in items:
        weights = {credit.segment: credit.weights for credit in credits}
        for member in group.members:
            for segment in member.segments if member.verdict.valid else ():
                logprobs = group.tree.segments[segment].logprobs
                assert logprobs is not None
                for index, weight in enumerate(weights[segment].tolist()):
                    if weight:
                        ids = tuple(group.tree.path_ids(segment, index + 1).tolist())
                        expected[ids, weight, float(logprobs[index])] += 1
    trained = Counter(
        (ids, weight, logprob)
        for tree in step.trees
        for ids, weight, logprob in zip(
            paths(tree), listed(tree.weights), listed(tree.old_logprobs), strict=True
        )
    )
    assert trained == expected
    assert step.trained_tokens == sum(expected.values()) == step.denominator


@given(steps, st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_only_one_rollout_alone_may_exceed_the_budget(some: list[Sketch], budget: int) -> None:
    step = pack(build(some), max_tokens=budget)
    for tree in step.trees:
        assert len(tree.token_ids) <= budget or len(set(listed(tree.sequence_ids))) == 1
    rollouts = [set(listed(tree.sequence_ids)) for tree in step.trees]
    assert sorted(index for row in rollouts for index in row) == list(range(step.trained_rollouts))


@given(steps)
@settings(max_examples=60, deadline=None)
def test_uncut_no_token_goes_through_the_network_twice_and_none_for_nothing(some: list[Sketch]) -> None:
    step = pack(build(some))
    if not step.trees:
        assert step.trained_tokens == 0
        return
    (tree,) = step.trees
    used: set[int] = set(listed(tree.predictors))
    for run in tree.runs:
        own = set(range(run.start, run.stop))
        if used & own:
            used |= {place for start, stop in run.ancestors for place in range(start, stop)}
            used |= set(range(run.start, max(used & own)))
    assert used == set(range(len(tree.token_ids)))
    assert step.packed_tokens == len(tree.token_ids) <= step.row_tokens
