"""Groups that fork: shape, what is kept and drawn anew, what waits for what, what it costs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.rollout.test_rollouter import HasB, Letters, task
from turnpoint.engine.fake import FakeEngine
from turnpoint.protocols import BranchRule, Engine, Examination, Renderer, Root, Verifier
from turnpoint.rollout.branched import Branching
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import (
    Account,
    BranchOrigin,
    BranchPoint,
    FinishReason,
    Group,
    Insight,
    RootOrigin,
    TokenKind,
)


@dataclass
class At:
    """Forks every root at `positions`, those that it is long enough for."""

    positions: tuple[int, ...]
    needs_siblings: bool = False
    seen: list[Root] = field(default_factory=list[Root])

    async def examine(self, root: Root, engine: Engine) -> Examination:
        self.seen.append(root)
        length = len(root.completion.token_ids)
        points = tuple(
            BranchPoint(position=at, score=1 / (1 + rank), rule="at")
            for rank, at in enumerate(self.positions)
            if at < length
        )
        insight = Insight(rule="at", asked=len(self.positions), found=len(points))
        return Examination(points=points, insight=insight, account=Account(tokens={TokenKind.SCORED: length}))


def group_of(
    rule: BranchRule,
    *,
    roots: int = 2,
    continuations: tuple[int, ...] = (4, 3),
    engine: FakeEngine | None = None,
    renderer: Renderer | None = None,
    max_new_tokens: int = 6,
) -> Group:
    branching = Branching(rule=rule, roots=roots, continuations=continuations)
    judge: Verifier = HasB()
    rollouter = Rollouter(
        engine or FakeEngine(law_seed=3),
        renderer or Letters(stop_ids=frozenset()),
        judge,
        samples_per_prompt=branching.group_size,
        temperature=0.8,
        max_new_tokens=max_new_tokens,
        seed=0,
        branching=branching,
    )
    return asyncio.run(rollouter.group(task("cab"), group_id="1/0"))


def origins(group: Group) -> list[tuple[int, int] | None]:
    return [
        (it.origin.root, it.origin.position) if isinstance(it.origin, BranchOrigin) else None
        for it in group.members
    ]


def test_roots_come_first_and_the_best_point_gets_more() -> None:
    group = group_of(At((2, 4)))
    expected: list[tuple[int, int] | None] = [None, None]
    for root in (0, 1):
        valid = group.members[root].verdict.valid
        expected += [(root, 2)] * 4 + [(root, 4)] * 3 if valid else [None] * 7
    assert origins(group) == expected
    assert any(it is not None for it in expected)


def test_a_branch_keeps_what_comes_before_the_point_and_draws_the_rest_from_the_original_law() -> None:
    engine = FakeEngine(law_seed=3)
    group = group_of(At((2,)), continuations=(7,), engine=engine)
    branches = [it for it in group.members if isinstance(it.origin, BranchOrigin)]
    assert branches
    for member in branches:
        assert isinstance(member.origin, BranchOrigin)
        root = group.members[member.origin.root]
        path = group.tree.path_ids(member.leaf)
        assert np.array_equal(path[:5], group.tree.path_ids(root.leaf)[:5])  # 3 of the prompt, 2 kept
        suffix = group.tree.segments[member.leaf]
        assert suffix.logprobs is not None
        for index, token in enumerate(suffix.token_ids.tolist()):
            law = engine.law(path[: 5 + index], temperature=0.8)
            assert float(np.log(law[token])) == pytest.approx(float(suffix.logprobs[index]), abs=1e-6)
        assert member.text == Letters().text(path[3:])
        assert len(suffix) == 4  # what is left of the limit of 6
        assert member.finish is FinishReason.LENGTH


def test_the_point_itself_is_drawn_anew() -> None:
    group = group_of(At((1,)), continuations=(15,), roots=2)
    firsts = {
        int(group.tree.segments[it.leaf].token_ids[0])
        for it in group.members
        if isinstance(it.origin, BranchOrigin)
    }
    assert len(firsts) > 1


@pytest.mark.parametrize(("positions", "expected"), [((99, 4), 7), ((99, 98), 0)])
def test_one_point_takes_all_and_none_gives_rollouts_from_the_prompt(
    positions: tuple[int, ...], expected: int
) -> None:
    group = group_of(At(positions))
    for index, root in enumerate(group.members[:2]):
        if root.verdict.valid:
            assert origins(group).count((index, 4)) == expected
            assert root.insight is not None
            assert (root.insight.asked, root.insight.found) == (2, min(1, expected))
    if expected == 0:
        assert all(isinstance(it.origin, RootOrigin) for it in group.members)
        assert TokenKind.SUFFIX not in {k for k, n in group.account.tokens.items() if n}


def test_a_root_without_a_verdict_is_not_examined() -> None:
    rule = At((2,))
    group = group_of(rule, continuations=(1,), roots=12, engine=FakeEngine(law_seed=9))
    invalid = [index for index, it in enumerate(group.members[:12]) if not it.verdict.valid]
    assert 0 < len(invalid) < 12
    assert len(rule.seen) == 12 - len(invalid)
    for index in invalid:
        insight = group.members[index].insight
        assert insight is not None
        assert insight.set_aside == "the root has no verdict: starts with a"
        assert isinstance(group.members[12 + index].origin, RootOrigin)


def test_draws_depend_on_the_place_in_the_group_alone() -> None:
    whole = group_of(At((2, 4)))
    slow = FakeEngine(law_seed=3, delays={"1/0/0": 0.2, "1/0/3": 0.1})
    again = group_of(At((2, 4)), engine=slow)
    assert again.tree == whole.tree
    assert [it.text for it in again.members] == [it.text for it in whole.members]


def test_a_root_that_is_ready_forks_while_others_decode() -> None:
    engine = FakeEngine(law_seed=3, delays={"1/0/0": 0.2})
    group_of(At((2, 4)), engine=engine)
    assert engine.started.index("1/0/9") < engine.started.index("1/0/2")  # of the second and the first root


def test_with_siblings_roots_wait_and_see_what_others_solved() -> None:
    engine = FakeEngine(law_seed=3, delays={"1/0/0": 0.05})
    rule = At((2,), needs_siblings=True)
    group = group_of(rule, continuations=(1,), roots=6, engine=engine)
    assert engine.started[:6] == [f"1/0/{index}" for index in range(6)]
    solved = {index: it.text for index, it in enumerate(group.members[:6]) if it.verdict.reward == 1.0}
    assert solved
    for root in rule.seen:
        index = int(root.id.rpartition("/")[2])
        assert root.solved_by == tuple(text for other, text in solved.items() if other != index)


def test_a_stop_string_may_begin_before_the_point() -> None:
    renderer: Renderer = Letters(stop_ids=frozenset(), stop_strings=("bc", "cb"))
    group = group_of(At((1, 2, 3)), continuations=(4, 4, 4), renderer=renderer, max_new_tokens=12, roots=12)
    crossing = 0
    for member in group.members:
        path = Letters().text(group.tree.path_ids(member.leaf)[3:])
        ends = path.endswith(("bc", "cb"))
        assert ends == ("bc" in path or "cb" in path) == (member.finish is FinishReason.STOP)
        if ends:
            assert member.text == path[:-2]
            at = member.origin.position if isinstance(member.origin, BranchOrigin) else 0
            crossing += at == len(path) - 1
    assert crossing  # a stop string lay across a point


def test_the_account_has_every_token_by_kind() -> None:
    group = group_of(At((2, 4)))
    tokens = group.account.tokens
    by_origin = {RootOrigin: 0, BranchOrigin: 0}
    for index, member in enumerate(group.members):
        by_origin[type(member.origin)] += group.num_generated(index)
    assert tokens[TokenKind.ROOT] == by_origin[RootOrigin]
    assert tokens[TokenKind.SUFFIX] == by_origin[BranchOrigin]
    assert tokens[TokenKind.SCORED] == 6 * sum(it.verdict.valid for it in group.members[:2])
    prompts = sum(
        3 + (it.origin.position if isinstance(it.origin, BranchOrigin) else 0) for it in group.members
    )
    assert tokens[TokenKind.PROMPT] + tokens[TokenKind.CACHED] == prompts


def test_a_shape_that_makes_another_number_is_refused() -> None:
    with pytest.raises(ValueError, match="branching makes 16 members, samples_per_prompt is 8"):
        Rollouter(
            FakeEngine(),
            Letters(),
            HasB(),
            samples_per_prompt=8,
            temperature=1.0,
            max_new_tokens=4,
            seed=0,
            branching=Branching(rule=At((1,)), roots=2, continuations=(4, 3)),
        )
