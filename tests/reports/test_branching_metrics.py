"""Figures of groups that fork, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from tests.records import TASK, append_policy, member, verdict
from tests.reports.samples import make_group
from tests.reports.test_step import report_of
from turnpoint.metrics import merge_metrics, metric_values
from turnpoint.reports.rollout_metrics import rollout_metrics
from turnpoint.reports.step_line import step_fields
from turnpoint.types import (
    Account,
    Author,
    BranchOrigin,
    Group,
    Insight,
    Member,
    TokenKind,
    TreeBuilder,
)

PAID = {TokenKind.ROOT: 14, TokenKind.SUFFIX: 9, TokenKind.CACHED: 30, TokenKind.PROMPT: 10}
SPENT = {"generate": 4.0, "reflect": 3.0, "score": 1.0, "slowest_verify": 0.0}
ACCOUNT = Account(tokens=PAID, seconds=SPENT)


def forked_group(account: Account = ACCOUNT) -> Group:
    """Returns two roots of ten and four tokens; of two points asked in each, one in the first was found.

    The first drew the tokens 0 to 9; one of its continuations from token 4 draws it again, the other 7. A
    fourth member, the second root's share, began at the prompt.
    """
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5])
    roots = [append_policy(tree, parent=prompt, token_ids=list(range(n))) for n in (10, 4)]
    seen = [
        Insight(rule="hindsight", asked=2, found=1, agrees=True),
        Insight(rule="entropy", asked=2, found=0, agrees=False, set_aside="no OUTCOME"),
    ]
    members = [
        dataclasses.replace(member(leaf, (leaf,), verdict(reward)), insight=insight)
        for leaf, reward, insight in zip(roots, (0.0, 1.0), seen, strict=True)
    ]
    for token, reward in ((4, 1.0), (7, 0.0)):
        leaf = append_policy(tree, parent=roots[0], parent_length=4, token_ids=[token, 1])
        origin = BranchOrigin(root=0, position=4, rule="hindsight", score=2.5)
        members.append(dataclasses.replace(member(leaf, (leaf,), verdict(reward)), origin=origin))
    fresh = append_policy(tree, parent=prompt, token_ids=[1])
    members.append(member(fresh, (fresh,), verdict(0.0)))
    return group_of(tree, members, account)


def group_of(tree: TreeBuilder, members: list[Member], account: Account) -> Group:
    return Group(id="1/0", task=TASK, tree=tree.freeze(), members=tuple(members), account=account)


def test_by_hand() -> None:
    values = metric_values(rollout_metrics([forked_group()]))
    assert {name: it for name, it in values.items() if name.startswith("branching/")} == {
        "branching/kept": 8,
        "branching/depth": 0.4,
        "branching/points": 1 / 4,
        "branching/agreement": 0.5,
        "branching/set_aside": 0.5,
        "branching/redrawn": 0.5,
        "branching/spread": pytest.approx(2 / 9),  # rewards 0, 1, 0 at the one point
        "branching/fresh": 1.0,
        "branching/score": 2.5,
    }
    assert values["signal"] == 1.0
    assert values["cache_hit"] == 30 / 40


def test_seconds_are_summed_over_roots_and_their_share_is_of_the_time_of_roots() -> None:
    slow = Account(seconds={**SPENT, "generate": 16.0, "reflect": 5.0})
    values = metric_values(rollout_metrics([forked_group(), forked_group(slow)]))
    assert values["seconds/reflect"] == 8.0
    assert values["seconds/score"] == 2.0
    assert values["seconds/examination_share"] == 10 / (2 * 4 + 2 * 16)  # two roots in each group


def test_the_figures_of_parts_merge_to_those_of_the_whole() -> None:
    groups = [forked_group(), forked_group(Account(tokens={TokenKind.REFLECTION: 3}, seconds=SPENT))]
    whole = metric_values(rollout_metrics(groups))
    assert metric_values(merge_metrics(rollout_metrics([it]) for it in groups)) == pytest.approx(whole)


def test_a_group_that_forks_has_every_kind_of_token_and_a_flat_one_what_was_paid() -> None:
    values = metric_values(rollout_metrics([forked_group()]))
    kinds = {name: it for name, it in values.items() if name.startswith("tokens/")}
    assert kinds == {f"tokens/{kind}": PAID.get(kind, 0) for kind in TokenKind}
    flat = metric_values(rollout_metrics([make_group([0.0, 1.0], account=ACCOUNT)]))
    assert {name for name in flat if name.startswith("tokens/")} == {f"tokens/{kind}" for kind in PAID}
    assert not any(name.startswith(("seconds/", "branching/")) for name in flat)


def test_the_line_of_a_step_says_what_examinations_took_where_there_were_any() -> None:
    field = "reflect 3.0 s, score 1.0 s summed over roots, 50 % of their time"
    assert field in step_fields(report_of([forked_group()]), steps=None)
    free = forked_group(
        Account(seconds={"generate": 4.0, "slowest_verify": 0.0})
    )  # random places cost nothing
    assert not any("reflect" in it for it in step_fields(report_of([free]), steps=None))
