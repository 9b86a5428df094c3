"""Credit on trees: hand values and laws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import TASK, append_policy, flat_group, member, verdict
from turnpoint.credit import GroupAdvantage, MaskTruncated, SiblingAdvantage, SubtreeAdvantage
from turnpoint.protocols import Advantage
from turnpoint.types import Author, BranchOrigin, FinishReason, Group, Member, TreeBuilder

LENGTH = 6  # tokens of a root; a continuation generates what is left of it

# A family: the reward of a root, and for each fork (position, rewards of the continuations).
Family = tuple[float | None, Sequence[tuple[int, Sequence[float | None]]]]


def group_of(*families: Family) -> Group:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5])
    roots = [append_policy(tree, parent=prompt, token_ids=[1] * LENGTH) for _ in families]
    members = [member(leaf, (leaf,), verdict(it[0])) for leaf, it in zip(roots, families, strict=True)]
    for index, (_, forks) in enumerate(families):
        for position, rewards in forks:
            for reward in rewards:
                leaf = append_policy(
                    tree, parent=roots[index], parent_length=position, token_ids=[2] * (LENGTH - position)
                )
                members.append(
                    Member(
                        leaf=leaf,
                        segments=(leaf,),
                        text="",
                        verdict=verdict(reward),
                        finish=FinishReason.STOP,
                        origin=BranchOrigin(root=index, position=position, rule="random", score=0.0),
                    )
                )
    return Group(id="0/0", task=TASK, tree=tree.freeze(), members=tuple(members))


def credited(rule: Advantage, group: Group) -> list[list[float]]:
    """Advantages by member."""
    return [list(it.advantages) for it in rule.credit(group) if it.advantages is not None]


BRANCHED = group_of((1.0, [(2, [0.0, 0.0]), (4, [1.0])]), (0.0, []))


def test_siblings_by_hand() -> None:
    first, second, *branches = credited(SiblingAdvantage(decay=0.0), BRANCHED)
    assert first == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]  # 1 against the other root, 1 at the first fork, 0 at 4
    assert second == [-1.0] * 6
    assert branches == [[-0.5] * 4, [-0.5] * 4, [0.0] * 2]
    carried, *_ = credited(SiblingAdvantage(decay=0.5), BRANCHED)
    assert carried == [1.25, 1.5, 1.0, 1.0, 0.0, 0.0]


def test_subtrees_by_hand() -> None:
    first, second, *branches = credited(SubtreeAdvantage(), BRANCHED)
    whole, start, middle = 2 / 5, 2 / 4, 2 / 2  # mean of all, of those through piece 0, through piece 1
    expected = [start - whole] * 2 + [middle - start] * 2 + [1.0 - middle] * 2
    assert first == pytest.approx(expected)
    assert second == pytest.approx([0.0 - whole] * 6)
    assert branches[0] == pytest.approx([0.0 - start] * 4)
    assert branches[2] == pytest.approx([1.0 - middle] * 2)


RULES: list[Advantage] = [
    SiblingAdvantage(decay=0.0),
    SiblingAdvantage(decay=0.7),
    SubtreeAdvantage(),
    GroupAdvantage(),
    GroupAdvantage(baseline="leave_one_out"),
]
rewards = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.none())
forks = st.lists(st.tuples(st.integers(1, 5), st.lists(rewards, min_size=1, max_size=3)), max_size=3).map(
    lambda found: sorted(dict(found).items())
)
families = st.lists(st.tuples(rewards, forks), min_size=1, max_size=3)


@given(values=st.lists(rewards, min_size=1, max_size=6))
def test_without_forks_they_are_what_flat_groups_get(values: list[float | None]) -> None:
    group = flat_group([verdict(value) for value in values])
    for rule, flat in ((RULES[0], RULES[4]), (RULES[1], RULES[4]), (RULES[2], RULES[3])):
        for mine, theirs in zip(rule.credit(group), flat.credit(group), strict=True):
            assert mine.advantages == pytest.approx(theirs.advantages, abs=1e-6)
            assert np.array_equal(mine.weights, theirs.weights)


@given(made=families)
def test_each_sampled_token_is_credited_once_and_invalid_ones_weigh_nothing(made: list[Family]) -> None:
    group = group_of(*made)
    for rule in RULES:
        credits = rule.credit(group)
        assert [it.segment for it in credits] == [s for m in group.members for s in m.segments]
        for it, owner in zip(credits, group.members, strict=True):
            assert len(it.weights) == len(group.tree.segments[it.segment])
            assert set(it.weights.tolist()) <= {float(owner.verdict.valid)}
            assert np.isfinite(it.advantages).all()  # type: ignore[arg-type]


@given(made=families, data=st.data())
def test_an_invalid_continuation_is_as_if_absent(made: list[Family], data: st.DataObject) -> None:
    kept = [
        (
            root,
            [
                (at, [it for it in found if it is not None])
                for at, found in forks
                if any(it is not None for it in found)
            ],
        )
        for root, forks in made
    ]
    whole, without = group_of(*made), group_of(*kept)
    for rule in RULES:
        valid = [
            it for it, owner in zip(credited(rule, whole), whole.members, strict=True) if owner.verdict.valid
        ]
        expected = [
            it
            for it, owner in zip(credited(rule, without), without.members, strict=True)
            if owner.verdict.valid
        ]
        assert len(valid) == len(expected)
        for one, other in zip(valid, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-6)


@given(made=families, data=st.data())
def test_the_order_of_siblings_does_not_matter(made: list[Family], data: st.DataObject) -> None:
    group = group_of(*made)
    start = len(made)
    order = data.draw(st.permutations(range(start, len(group.members))))
    shuffled = dataclasses.replace(
        group, members=(*group.members[:start], *(group.members[index] for index in order))
    )
    for rule in RULES:
        mine = {it.segment: it.advantages for it in rule.credit(group)}
        theirs = {it.segment: it.advantages for it in rule.credit(shuffled)}
        assert mine.keys() == theirs.keys()
        for segment, values in mine.items():
            assert values == pytest.approx(theirs[segment], abs=1e-6)


@given(made=families)
def test_values_along_a_path_add_up_to_the_reward_less_the_mean(made: list[Family]) -> None:
    group = group_of(*made)
    values = credited(SubtreeAdvantage(), group)
    valid = [it.verdict.reward for it in group.members if it.verdict.reward is not None]
    for index, it in enumerate(group.members):
        if it.verdict.reward is None:
            continue
        root, position = (index, LENGTH)
        pieces = [0.0]
        if isinstance(it.origin, BranchOrigin):
            root, position = it.origin.root, it.origin.position
            if not group.members[root].verdict.valid:
                continue  # its own pieces are not credited
            pieces = [values[index][0]]
        starts = [
            0,
            *sorted(
                {
                    o.position
                    for m in group.members
                    if m.verdict.valid and isinstance(o := m.origin, BranchOrigin) and o.root == root
                }
            ),
        ]
        pieces += [values[root][at] for at in starts if at < position]
        assert sum(pieces) == pytest.approx(it.verdict.reward - sum(valid) / len(valid), abs=1e-6)


def test_a_fork_at_the_first_token_is_another_root() -> None:
    forked = group_of((1.0, [(0, [0.0])]))
    flat = group_of((1.0, []), (0.0, []))
    for rule in RULES:
        assert credited(rule, forked) == credited(rule, flat)


def test_a_truncated_root_can_be_left_out_and_its_continuations_stay() -> None:
    root, *others = BRANCHED.members
    cut = dataclasses.replace(
        BRANCHED, members=(dataclasses.replace(root, finish=FinishReason.LENGTH), *others)
    )
    first, _, left, right, late = credited(SiblingAdvantage(decay=0.0, overlong=MaskTruncated()), cut)
    assert first == [0.0] * 6
    assert (left, right, late) == ([0.0] * 4, [0.0] * 4, [0.0] * 2)  # equal siblings; one alone
    assert SiblingAdvantage(overlong=MaskTruncated()).credit(cut)[0].weights.tolist() == [0.0] * 6


def test_a_decay_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decay 1\.5 must lie in"):
        SiblingAdvantage(decay=1.5)
