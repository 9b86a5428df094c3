"""Small groups and evaluations, written by what matters to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnpoint.rollout.evaluate import Attempt, Evaluation, Outcome
from turnpoint.types import (
    Account,
    Author,
    FinishReason,
    Group,
    Member,
    Message,
    Task,
    TreeBuilder,
    Verdict,
)


def verdict_of(reward: float | str, parts: Mapping[str, float] | None = None) -> Verdict:
    """A reward, or the reason why there is none."""
    if isinstance(reward, str):
        return Verdict.invalid(reward)
    return Verdict.scored(float(reward), parts=parts or {})


def make_group(
    rewards: Sequence[float | str],
    *,
    lengths: Sequence[int] | None = None,
    truncated: Sequence[int] = (),
    parts: Sequence[Mapping[str, float]] | None = None,
    texts: Sequence[str] | None = None,
    question: str = "3 + 4 =",
    name: str = "sum/0",
    account: Account | None = None,
) -> Group:
    """A prompt of two tokens and one root per reward; `truncated` members ran into the limit."""
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[1, 2])
    members: list[Member] = []
    for index, reward in enumerate(rewards):
        length = lengths[index] if lengths else 3
        leaf = tree.append(
            parent=prompt,
            author=Author.POLICY,
            token_ids=[5] * length,
            logprobs=[-0.5] * length,
            policy_version=0,
        )
        members.append(
            Member(
                leaf=leaf,
                segments=(leaf,),
                text=texts[index] if texts else "7",
                verdict=verdict_of(reward, parts[index] if parts else None),
                finish=FinishReason.LENGTH if index in truncated else FinishReason.STOP,
            )
        )
    task = Task(id=name, messages=(Message(role="user", content=question),), answer="7")
    return Group(
        id=f"1/{name}", task=task, tree=tree.freeze(), members=tuple(members), account=account or Account()
    )


def attempt(reward: float | str) -> Attempt:
    """An attempt of four tokens."""
    return Attempt(text="7", tokens=4, finish=FinishReason.STOP, verdict=verdict_of(reward))


def make_evaluation(
    greedy: Sequence[float | str],
    sampled: Sequence[Sequence[float | str]] | None = None,
    *,
    majority: float = 0.1,
) -> Evaluation:
    """An evaluation of problems "0", "1", ... with these rewards."""
    outcomes = [
        Outcome(
            task_id=str(index),
            greedy=attempt(reward),
            sampled=tuple(map(attempt, sampled[index])) if sampled else (),
        )
        for index, reward in enumerate(greedy)
    ]
    return Evaluation(
        outcomes=tuple(outcomes),
        samples=len(sampled[0]) if sampled else 0,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=8,
        seed=0,
        seconds=1.0,
        majority_answer="7",
        majority_accuracy=majority,
    )
