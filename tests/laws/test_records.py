"""The invariants that `turnpoint.types` states, over trees of every shape and a real engine's rollouts."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import (
    TASK,
    TreePlan,
    append_policy,
    branched_group,
    grow,
    member,
    rewards,
    tree_plans,
    verdict,
)
from turnpoint.credit import GroupAdvantage
from turnpoint.engine.fake import FakeEngine
from turnpoint.protocols import GenerateRequest, ScoreRequest
from turnpoint.types import Author, Group, Member, Segment, TokenTree, TreeBuilder, Verdict, token_array


def naive_path(tree: TokenTree, segment: int) -> list[int]:
    node = tree.segments[segment]
    before = [] if node.parent is None else naive_prefix(tree, node.parent, node.parent_length)
    return [*before, *node.token_ids.tolist()]


def naive_prefix(tree: TokenTree, segment: int, length: int) -> list[int]:
    whole = naive_path(tree, segment)
    return whole[: len(whole) - len(tree.segments[segment]) + length]


# --- 1. joining a path gives the ids the engine saw ---------------------------------------------


@given(plan=tree_plans)
def test_paths_join_what_comes_before(plan: TreePlan) -> None:
    tree = grow(plan).freeze()
    for segment in tree.segments:
        assert tree.path_ids(segment.id).tolist() == naive_path(tree, segment.id)
        for length in range(len(segment) + 1):
            assert tree.path_ids(segment.id, length).tolist() == naive_prefix(tree, segment.id, length)
        assert sum(piece.length for piece in tree.path(segment.id)) == len(tree.path_ids(segment.id))


@given(plan=tree_plans)
def test_leaves_and_children_agree(plan: TreePlan) -> None:
    tree = grow(plan).freeze()
    assert tree.leaves() == [s.id for s in tree.segments if not tree.children(s.id)]
    assert sorted(child for s in tree.segments for child in tree.children(s.id)) == list(
        range(1, len(tree.segments))
    )


def test_a_fork_at_any_token_scores_as_it_was_sampled() -> None:
    engine = FakeEngine()

    async def run() -> None:
        tree = TreeBuilder()
        prompt = tree.append(author=Author.PROMPT, token_ids=[1, 2])
        root = await sample(tree, prompt, 2, "root")
        forks = [await sample(tree, root, cut, f"fork/{cut}") for cut in range(len(tree[root]))]
        await sample(tree, forks[1], 1, "fork of a fork")
        frozen = tree.freeze()
        for segment in frozen.segments[1:]:
            ids = frozen.path_ids(segment.id)
            request = ScoreRequest(id="again", token_ids=ids, start=len(ids) - len(segment))
            scores = await engine.score(request)
            np.testing.assert_array_equal(scores.logprobs, segment.logprobs)

    async def sample(tree: TreeBuilder, parent: int, length: int, name: str) -> int:
        prefix = tree.freeze().path_ids(parent, length)
        done = await engine.generate(GenerateRequest(id=name, prompt_ids=prefix, max_tokens=6))
        return tree.append(
            parent=parent,
            parent_length=length,
            author=Author.POLICY,
            token_ids=done.token_ids,
            logprobs=done.logprobs,
            policy_version=done.policy_version,
        )

    asyncio.run(run())


@given(plan=tree_plans)
def test_growing_changes_nothing_that_was_there(plan: TreePlan) -> None:
    prompt, steps = plan
    whole = grow(plan).freeze()
    for count in range(len(steps)):
        part = grow((prompt, steps[:count])).freeze()
        assert part.segments == whole.segments[: count + 1]


# --- 2. every POLICY segment has exactly one owner ----------------------------------------------


@given(plan=tree_plans, owners=st.lists(st.integers(0, 2), min_size=7, max_size=7))
def test_any_partition_of_the_policy_segments_is_a_group(plan: TreePlan, owners: list[int]) -> None:
    tree = grow(plan).freeze()
    policy = [s.id for s in tree.segments if s.author is Author.POLICY]
    owned = [tuple(s for s, owner in zip(policy, owners, strict=False) if owner == m) for m in range(3)]
    members = tuple(member(s[-1] if s else 0, s, Verdict.scored(1.0)) for s in owned)
    group = Group(id="0/0", task=TASK, tree=tree, members=members)
    assert sum(group.num_generated(m) for m in range(3)) == sum(len(tree.segments[s]) for s in policy)
    for victim in policy[:1]:
        robbed = tuple(
            dataclasses.replace(m, segments=tuple(s for s in m.segments if s != victim)) for m in members
        )
        with pytest.raises(ValueError, match="exactly one owner"):
            dataclasses.replace(group, members=robbed)


# --- 3. None is never sampled or never scored, 0.0 is zero --------------------------------------


def test_nothing_and_zero_are_told_apart() -> None:
    sure = Segment(
        id=0,
        parent=None,
        parent_length=0,
        author=Author.POLICY,
        token_ids=token_array([1]),
        logprobs=np.zeros(1, np.float32),
        policy_version=0,
    )
    assert sure.logprobs is not None
    assert sure.logprobs.tolist() == [0.0]
    assert {s.author for s in branched_group().tree.segments if s.logprobs is None} == {
        Author.PROMPT,
        Author.ENVIRONMENT,
    }
    wrong, unscored = Verdict.scored(0.0), Verdict.invalid("judge died")
    assert (wrong.reward, unscored.reward) == (0.0, None)
    assert wrong != unscored


# --- 4. cutting a segment in two changes no credit ----------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    values=st.lists(rewards, min_size=5, max_size=5),
    cut=st.integers(0, 6),
)
def test_cutting_a_segment_changes_no_credit(
    lengths: list[int], values: list[float | None], cut: int
) -> None:
    whole, halves = TreeBuilder(), TreeBuilder()
    whole.append(author=Author.PROMPT, token_ids=[5])
    halves.append(author=Author.PROMPT, token_ids=[5])
    members_whole, members_halves = list[Member](), list[Member]()
    for n, value in zip(lengths, values, strict=False):
        tokens = list(range(n))
        at = append_policy(whole, parent=0, token_ids=tokens)
        members_whole.append(member(at, (at,), verdict(value)))
        first = append_policy(halves, parent=0, token_ids=tokens[: cut % (n + 1)])
        second = append_policy(halves, parent=first, token_ids=tokens[cut % (n + 1) :])
        members_halves.append(member(second, (first, second), verdict(value)))
    assert streams(whole, members_whole) == streams(halves, members_halves)


def streams(tree: TreeBuilder, members: list[Member]) -> list[list[tuple[float, float]]]:
    """Returns (advantage, weight) of each token that each member generated."""
    group = Group(id="0/0", task=TASK, tree=tree.freeze(), members=tuple(members))
    credits = {credit.segment: credit for credit in GroupAdvantage(scale="std").credit(group)}
    result: list[list[tuple[float, float]]] = []
    for m in group.members:
        tokens: list[tuple[float, float]] = []
        for segment in m.segments:
            advantages = credits[segment].advantages
            assert advantages is not None
            tokens.extend(zip(advantages.tolist(), credits[segment].weights.tolist(), strict=True))
        result.append(tokens)
    return result
