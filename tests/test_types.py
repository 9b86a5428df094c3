"""The records refuse what they must not hold, and say in one line why."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.records import TASK, append_policy, branched_group, flat_group, member
from turnpoint import types
from turnpoint.types import (
    Account,
    Author,
    BranchOrigin,
    FinishReason,
    Group,
    Message,
    Segment,
    SegmentCredit,
    Task,
    TeacherTargets,
    TokenKind,
    TokenTree,
    TreeBuilder,
    Verdict,
    float_array,
    token_array,
)


def policy(**changes: Any) -> Segment:
    fields: dict[str, Any] = {
        "id": 0,
        "parent": None,
        "parent_length": 0,
        "author": Author.POLICY,
        "token_ids": token_array([7, 8]),
        "logprobs": float_array([-0.1, -0.2]),
        "policy_version": 3,
    }
    return Segment(**{**fields, **changes})


def one_line(error: pytest.ExceptionInfo[ValueError]) -> bool:
    return "\n" not in str(error.value)


def test_examples_in_docstrings() -> None:
    # without the tests' type checker: for people the examples write lists where records hold arrays
    code = "import doctest, turnpoint.types; print(*doctest.testmod(turnpoint.types))"
    source = str(Path(types.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True
    )
    failed, attempted = done.stdout.split()[-2:]
    assert failed == "0", done.stdout
    assert int(attempted) > 10


# --- arrays -------------------------------------------------------------------------------------


def test_arrays_are_read_only_copies() -> None:
    source = np.array([1, 2], np.int32)
    ids, floats = token_array(source), float_array(source)
    source[0] = 9
    assert (ids.tolist(), ids.dtype) == ([1, 2], np.int32)
    assert (floats.tolist(), floats.dtype) == ([1.0, 2.0], np.float32)
    for array in (ids, floats, branched_group().tree.path_ids(6)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    assert token_array([]).dtype == np.int32


@pytest.mark.parametrize("values", [[0.5], [[1, 2]], 3, ["a"], [True]])
def test_token_ids_are_1d_integers(values: Any) -> None:
    with pytest.raises(ValueError, match="token ids must be 1-D integers") as error:
        token_array(values)
    assert one_line(error)


def test_floats_are_1d() -> None:
    with pytest.raises(ValueError, match="1-D array, got shape"):
        float_array([[1.0]])


# --- segments and trees -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": None},
        {"policy_version": None},
        {"author": Author.PROMPT},
        {"author": Author.ENVIRONMENT, "policy_version": None},
        {"author": Author.PROMPT, "logprobs": None},
    ],
)
def test_only_policy_segments_have_logprobs_and_version(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="segment 0: logprobs and policy_version belong to POLICY") as error:
        policy(**changes)
    assert one_line(error)


def test_one_logprob_per_token() -> None:
    with pytest.raises(ValueError, match="segment 0: 2 tokens but 1 logprobs"):
        policy(logprobs=float_array([-0.1]))


def test_segments_compare_by_value() -> None:
    assert policy() == policy()
    assert policy() != "segment"
    for changes in (
        {"policy_version": 4},
        {"token_ids": token_array([7, 9])},
        {"logprobs": float_array([-0.1, -0.3])},
        {"id": 1, "parent": 0},
    ):
        assert policy() != policy(**changes)
    nan = float_array([math.nan, 0.0])
    assert policy(logprobs=nan) == policy(logprobs=nan)
    unsampled: dict[str, Any] = {"logprobs": None, "policy_version": None}
    assert policy(author=Author.PROMPT, **unsampled) == policy(author=Author.PROMPT, **unsampled)
    assert policy(author=Author.PROMPT, **unsampled) != policy()


def test_records_are_frozen() -> None:
    for record, name in [(policy(), "id"), (TASK, "answer"), (branched_group(), "members")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": 2, "parent": 0}, "segment 2: ids count from 0 without gaps, expected 1"),
        ({"id": 1, "parent": None}, "segment 1: only the first segment has no parent"),
        ({"id": 1, "parent": 1}, "segment 1: parent 1 does not come before it"),
        ({"id": 1, "parent": -1}, "segment 1: parent -1 does not come before it"),
        ({"id": 1, "parent": 0, "parent_length": 3}, "parent_length 3 is beyond the 2 tokens of parent 0"),
        ({"id": 1, "parent": 0, "parent_length": -1}, "parent_length -1 is beyond"),
    ],
)
def test_trees_refuse_what_does_not_hang_together(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        TokenTree(segments=(policy(), policy(**changes)))
    assert one_line(error)


def test_the_start_hangs_on_nothing() -> None:
    with pytest.raises(ValueError, match="with parent_length 0"):
        TokenTree(segments=(policy(parent_length=1),))


def test_paths_of_a_branched_tree() -> None:
    tree = branched_group().tree
    assert tree.path_ids(3).tolist() == [5, 6, 7, 8, 9, 1, 1, 3, 4]
    assert tree.path_ids(5).tolist() == [5, 6, 7, 9, 9]
    assert tree.path_ids(6).tolist() == [5, 6, 7, 8, 9, 1, 1, 3, 0]
    assert tree.path_ids(3, 1).tolist() == [5, 6, 7, 8, 9, 1, 1, 3]
    assert [(p.segment.id, p.length) for p in tree.path(6)] == [(0, 2), (1, 3), (2, 2), (3, 1), (6, 1)]
    assert (tree.children(1), tree.children(6)) == ([2, 5], [])
    assert tree.leaves() == [4, 5, 6]


def test_builder_validates_every_append_and_a_refused_one_leaves_no_trace() -> None:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[1, 2])
    for parent, length in [(5, None), (-1, None), (prompt, 3)]:
        with pytest.raises(ValueError, match="segment 1"):
            append_policy(tree, parent=parent, parent_length=length, token_ids=[1])
    with pytest.raises(ValueError, match="segment 1"):
        tree.append(author=Author.PROMPT, token_ids=[1])
    assert len(tree) == 1
    assert append_policy(tree, parent=prompt, token_ids=[3]) == 1
    assert tree[1].parent_length == 2  # all of the parent, when not told otherwise
    early = tree.freeze()
    append_policy(tree, parent=1, token_ids=[4])
    assert (len(early.segments), len(tree.freeze().segments)) == (2, 3)


# --- verdicts, members, groups ------------------------------------------------------------------


@pytest.mark.parametrize("reward", [math.nan, math.inf, True, "1", np.float32(1)])
def test_a_reward_is_a_finite_number(reward: Any) -> None:
    verdict = Verdict.__new__(Verdict)  # past the tests' type checker: user code is not checked either
    fields: dict[str, Any] = {"valid": True, "reason": "", "feedback": "", "parts": {}}
    for name, value in {**fields, "reward": reward}.items():
        object.__setattr__(verdict, name, value)
    with pytest.raises(ValueError, match="a reward must be a finite number or None"):
        verdict.__post_init__()


def test_never_scored_is_not_zero() -> None:
    assert Verdict.scored(0.0).reward == 0.0
    assert Verdict.scored(0.0).valid
    assert Verdict.invalid("timed out").reward is None
    with pytest.raises(ValueError, match="a valid verdict needs a reward"):
        Verdict(reward=None, valid=True)
    for reward in (None, 1.0):
        with pytest.raises(ValueError, match="an invalid verdict needs a reason"):
            Verdict(reward=reward, valid=False)


def test_defaults_cannot_be_shared_by_mistake() -> None:
    with pytest.raises(TypeError):
        Verdict.scored(1.0).parts["format"] = 1.0  # type: ignore[index]
    assert Task(id="a", messages=(Message(role="user", content="?"),), answer="").metadata == {}


def test_accounts_add_up() -> None:
    left = Account(tokens={TokenKind.ROOT: 3}, seconds={"generate": 1.0})
    right = Account(tokens={TokenKind.ROOT: 4, TokenKind.CACHED: 2}, seconds={"verify": 0.5})
    both = left + right
    assert both.tokens == {TokenKind.ROOT: 7, TokenKind.CACHED: 2}
    assert both.seconds == {"generate": 1.0, "verify": 0.5}
    assert Account() + left == left


def test_every_policy_segment_has_one_owner() -> None:
    group = flat_group([Verdict.scored(1.0), Verdict.scored(0.0)])
    first, second = group.members
    for members in [
        (first,),
        (first, first, second),
        (first, member(2, (2, 1), Verdict.scored(0.0))),
        (first, second, member(0, (0,), Verdict.scored(0.0))),
        (first, second, member(2, (7,), Verdict.scored(0.0))),
    ]:
        with pytest.raises(
            ValueError, match="group 0/0: each POLICY segment needs exactly one owner"
        ) as error:
            dataclasses.replace(group, members=members)
        assert one_line(error)


@pytest.mark.parametrize("root", [1, 2, -1])
def test_a_branch_comes_after_its_root(root: int) -> None:
    group = flat_group([Verdict.scored(1.0), Verdict.scored(0.0)])
    origin = BranchOrigin(root=root, position=0, rule="random", score=0.0)
    branch = dataclasses.replace(group.members[1], origin=origin)
    with pytest.raises(ValueError, match=f"member 1 branches from {root}, which does not come before it"):
        dataclasses.replace(group, members=(group.members[0], branch))


def test_what_a_member_generated() -> None:
    group = branched_group()
    assert [segment.id for segment in group.generated(0)] == [1, 3]
    assert [group.num_generated(i) for i in range(4)] == [5, 1, 2, 1]


def test_groups_compare_by_value() -> None:
    assert branched_group() == branched_group()
    other = dataclasses.replace(branched_group().members[0], finish=FinishReason.LENGTH)
    assert branched_group() != dataclasses.replace(
        branched_group(), members=(other, *branched_group().members[1:])
    )


def test_an_empty_group_is_a_group() -> None:
    tree = TreeBuilder()
    tree.append(author=Author.PROMPT, token_ids=[1])
    assert Group(id="0/0", task=TASK, tree=tree.freeze(), members=()).members == ()


# --- credit -------------------------------------------------------------------------------------


def test_streams_of_a_credit_have_one_length() -> None:
    ones = float_array([1, 1])
    SegmentCredit(segment=1, weights=ones)
    SegmentCredit(segment=1, weights=ones, teacher=TeacherTargets(logprobs=ones, coef=1.0))
    for streams in (
        {"advantages": float_array([0.5])},
        {"teacher": TeacherTargets(logprobs=float_array([0.5]), coef=1.0)},
    ):
        with pytest.raises(ValueError, match=r"segment 1: streams of different lengths \[1, 2\]"):
            SegmentCredit(segment=1, weights=ones, **streams)  # type: ignore[arg-type]
