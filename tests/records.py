"""Groups for tests: small trees with odd values, written by hand or drawn by hypothesis."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import strategies as st

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

TASK = Task(id="sum/0", messages=(Message(role="user", content="3 + 4 ="),), answer="7")


def flat_group(verdicts: list[Verdict], lengths: list[int] | None = None) -> Group:
    """Returns a prompt with one leaf per verdict, of `lengths` tokens (default: 2, 3, 4, ...)."""
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5, 6])
    members: list[Member] = []
    for index, verdict in enumerate(verdicts):
        n = index + 2 if lengths is None else lengths[index]
        leaf = append_policy(tree, parent=prompt, token_ids=list(range(n)))
        members.append(member(leaf, (leaf,), verdict))
    return Group(id="0/0", task=TASK, tree=tree.freeze(), members=tuple(members))


def append_policy(
    tree: TreeBuilder, *, parent: int, token_ids: list[int], parent_length: int | None = None
) -> int:
    """Appends a POLICY segment whose log-probabilities are -0.1, -0.2, ... nats."""
    logprobs = [-0.1 * (i + 1) for i in range(len(token_ids))]
    return tree.append(
        parent=parent,
        parent_length=parent_length,
        author=Author.POLICY,
        token_ids=token_ids,
        logprobs=logprobs,
        policy_version=0,
    )


def member(leaf: int, segments: tuple[int, ...], verdict: Verdict) -> Member:
    """Returns a root that ended with a stop token."""
    return Member(leaf=leaf, segments=segments, text="7", verdict=verdict, finish=FinishReason.STOP)


def branched_group() -> Group:
    """Returns two roots, the first in two turns, and forks of the first in both turns, one of them invalid.

    Segments: 0 prompt, 1 and 3 the first root's turns around observation 2, 4 the second root, 5 a fork in
    segment 1, 6 a fork in segment 3.
    """
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[5, 6])
    act = append_policy(tree, parent=prompt, token_ids=[7, 8, 9])
    seen = tree.append(parent=act, author=Author.ENVIRONMENT, token_ids=[1, 1])
    answer = append_policy(tree, parent=seen, token_ids=[3, 4])
    other = append_policy(tree, parent=prompt, token_ids=[2])
    early = append_policy(tree, parent=act, parent_length=1, token_ids=[9, 9])
    late = append_policy(tree, parent=answer, parent_length=1, token_ids=[0])
    members = (
        member(answer, (act, answer), Verdict.scored(1.0, feedback="Correct.", parts={"format": 0.5})),
        member(other, (other,), Verdict.scored(0.0, reason="string")),
        Member(
            leaf=early,
            segments=(early,),
            text="",
            verdict=Verdict.invalid("verifier timed out after 2 s"),
            finish=FinishReason.LENGTH,
            origin=BranchOrigin(root=0, position=1, rule="hindsight", score=float("inf")),
        ),
        Member(
            leaf=late,
            segments=(late,),
            text="0",
            verdict=Verdict.scored(0.25),
            finish=FinishReason.STOP,
            origin=BranchOrigin(root=0, position=4, rule="random", score=0.0),
        ),
    )
    account = Account(
        tokens={TokenKind.PROMPT: 2, TokenKind.ROOT: 6, TokenKind.SUFFIX: 3}, seconds={"verify": 0.1}
    )
    return Group(id="3/1", task=TASK, tree=tree.freeze(), members=members, account=account)


def verdict(reward: float | None) -> Verdict:
    """Returns a valid verdict, or an invalid one for None."""
    return Verdict.invalid("judge died") if reward is None else Verdict.scored(reward)


rewards = st.one_of(st.floats(-1e6, 1e6, width=32), st.sampled_from([0.0, 1.0]), st.none())

_tokens = st.lists(st.integers(0, 99), max_size=4)

# A prompt, then (parent, cut, by the policy?, tokens); parent and cut wrap around to what exists.
tree_plans = st.tuples(
    _tokens,
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), _tokens), max_size=7),
)
TreePlan: TypeAlias = tuple[list[int], list[tuple[int, int, bool, list[int]]]]


def grow(plan: TreePlan) -> TreeBuilder:
    """Returns the tree of a plan: segments by any author, forking anywhere."""
    prompt, steps = plan
    tree = TreeBuilder()
    tree.append(author=Author.PROMPT, token_ids=prompt)
    for parent, cut, sampled, tokens in steps:
        at = parent % len(tree)
        length = cut % (len(tree[at]) + 1)
        if sampled:
            append_policy(tree, parent=at, parent_length=length, token_ids=tokens)
        else:
            tree.append(parent=at, parent_length=length, author=Author.ENVIRONMENT, token_ids=tokens)
    return tree
