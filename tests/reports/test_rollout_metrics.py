"""Figures of a step's rollouts, by hand."""

import pytest

from tests.reports.samples import make_group
from turnpoint.metrics import merge_metrics, metric_values
from turnpoint.reports.rollout_metrics import completion_length, has_signal, rollout_metrics
from turnpoint.types import (
    Account,
    Author,
    BranchOrigin,
    FinishReason,
    Group,
    Member,
    Message,
    Task,
    TokenKind,
    TreeBuilder,
    Verdict,
)


def test_by_hand() -> None:
    groups = [
        make_group([1.0, 0.0], lengths=[4, 10], truncated=[1]),
        make_group([0.5, "timed out"], lengths=[6, 8]),
    ]
    assert metric_values(rollout_metrics(groups)) == {
        "reward": 0.5,
        "solved": pytest.approx(1 / 3),
        "signal": 0.5,
        "invalid": 0.25,
        "truncated": 0.25,
        "length": 7.0,
        "length/max": 10.0,
        "length/finished": 6.0,
    }


def test_lengths_are_raw_also_of_what_does_not_train() -> None:
    values = metric_values(rollout_metrics([make_group(["broken", 0.0], lengths=[9, 1], truncated=[0])]))
    assert values["length"] == 5.0
    assert values["length/max"] == 9.0
    assert values["length/finished"] == 1.0


def test_all_truncated_or_all_invalid_is_absent_and_not_zero() -> None:
    values = metric_values(rollout_metrics([make_group(["broken", "broken"], truncated=[0, 1])]))
    assert "length/finished" not in values
    assert "reward" not in values
    assert "solved" not in values
    assert (values["truncated"], values["invalid"], values["signal"]) == (1.0, 1.0, 0.0)


def test_the_figures_of_parts_merge_to_those_of_the_whole() -> None:
    groups = [
        make_group([1.0, 0.0], parts=[{"form": 1.0}, {"form": 0.0}]),
        make_group(["x", 2.0], lengths=[7, 8], truncated=[0]),
        make_group([0.0, 0.0]),
    ]
    whole = metric_values(rollout_metrics(groups))
    parts = metric_values(merge_metrics(rollout_metrics([group]) for group in groups))
    assert parts == pytest.approx(whole)


def test_parts_of_rewards_are_over_the_valid_that_have_them() -> None:
    group = make_group([1.0, 0.0, "x"], parts=[{"form": 1.0}, {}, {"form": 9.0}])
    assert metric_values(rollout_metrics([group]))["reward/form"] == 1.0


def test_accounts_are_summed_and_the_slowest_verification_is_the_largest() -> None:
    groups = [
        make_group([0.0], account=Account(tokens={TokenKind.ROOT: 5}, seconds={"slowest_verify": 0.5})),
        make_group([0.0], account=Account(tokens={TokenKind.ROOT: 7}, seconds={"slowest_verify": 0.2})),
    ]
    values = metric_values(rollout_metrics(groups))
    assert values["tokens/root"] == 12.0
    assert values["slowest_verify"] == 0.5


def test_signal_needs_two_different_valid_rewards() -> None:
    assert has_signal(make_group([0.0, 1.0]))
    assert not has_signal(make_group([1.0, 1.0]))
    assert not has_signal(make_group([1.0, "broken"]))
    assert not has_signal(make_group(["broken", "broken"]))


def test_a_branch_is_as_long_as_its_path() -> None:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[1, 2])
    root = tree.append(
        parent=prompt, author=Author.POLICY, token_ids=[3, 4, 5], logprobs=[-1.0] * 3, policy_version=0
    )
    seen = tree.append(parent=root, parent_length=2, author=Author.ENVIRONMENT, token_ids=[9, 9])
    fork = tree.append(parent=seen, author=Author.POLICY, token_ids=[6], logprobs=[-1.0], policy_version=0)
    verdict = Verdict.scored(0.0)
    members = (
        Member(leaf=root, segments=(root,), text="", verdict=verdict, finish=FinishReason.STOP),
        Member(
            leaf=fork,
            segments=(fork,),
            text="",
            verdict=verdict,
            finish=FinishReason.STOP,
            origin=BranchOrigin(root=0, position=2, rule="random", score=0.0),
        ),
    )
    task = Task(id="t", messages=(Message(role="user", content="?"),), answer="7")
    group = Group(id="g", task=task, tree=tree.freeze(), members=members)
    assert [completion_length(group, member) for member in members] == [3, 3]
