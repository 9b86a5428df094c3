"""A hindsight teacher reads what the branch rule has paid for, and asks where anything differs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import turnpoint as tp
from tests.records import TASK, append_policy, member
from turnpoint.branching.candidates import Candidates
from turnpoint.branching.common import Selection
from turnpoint.branching.hindsight import HindsightRule, Source
from turnpoint.config import HindsightTeacher
from turnpoint.distill import told_of
from turnpoint.engine import TorchEngine
from turnpoint.engine.fake import FakeEngine, letters
from turnpoint.errors import RecipeError
from turnpoint.protocols import Completion, Examination, Root, ScoreRequest, Scores
from turnpoint.rollout import read_groups
from turnpoint.teachers.remembered import RememberedRule, RememberedScores
from turnpoint.teachers.scoring import ScoringTeacher
from turnpoint.types import (
    Author,
    BranchOrigin,
    FinishReason,
    Group,
    Insight,
    Message,
    TokenIds,
    TreeBuilder,
    Verdict,
    float_array,
    token_array,
)

PROMPT, TOKENS = [2, 0, 1], [1, 3, 0, 2]
VERDICT = Verdict.scored(0.0, feedback="No, 12 it is.")


@dataclass
class Renders:
    """A prompt of ids that hindsight changes by its length."""

    stop_ids: frozenset[int] = frozenset({4})
    stop_strings: tuple[str, ...] = ()

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        return token_array(PROMPT if hindsight is None else [*PROMPT, len(hindsight) % 5, 3])

    def turn(self, message: Message) -> TokenIds:
        return self.prompt([message])

    def text(self, token_ids: TokenIds) -> str:
        return letters(token_ids)


def group_of(insight: Insight | None) -> Group:
    """Returns a root and a fork of it, both judged alike."""
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=PROMPT)
    root = append_policy(tree, parent=prompt, token_ids=TOKENS)
    fork = append_policy(tree, parent=root, token_ids=[0, 0], parent_length=2)
    origin = BranchOrigin(root=0, position=2, rule="hindsight", score=1.0)
    members = (
        replace(member(root, (root,), VERDICT), insight=insight),
        replace(member(fork, (fork,), VERDICT), origin=origin),
    )
    return Group(id="1/0", task=TASK, tree=tree.freeze(), members=members)


def examined(scores: RememberedScores, *, characters: int = 2000) -> Examination:
    """Returns what hindsight finds in the root of `group_of`, asked through `scores`."""
    renderer = Renders()
    selection = Selection(
        count=1,
        candidates=Candidates(renderer.text, stop_ids=renderer.stop_ids, blanks=True, punctuation=True),
        min_gap=1,
        skip_first=0,
        skip_last=0,
    )
    rule = HindsightRule(
        selection=selection,
        renderer=renderer,
        source=Source.FEEDBACK,
        reflector=None,
        gate=None,
        feedback_characters=characters,
    )
    completion = Completion(
        token_ids=token_array(TOKENS),
        logprobs=float_array([-1.0] * 4),
        policy_version=0,
        finish=FinishReason.STOP,
        text=letters(token_array(TOKENS)),
    )
    root = Root(id="1/0/0", task=TASK, prompt_ids=token_array(PROMPT), completion=completion, verdict=VERDICT)
    return asyncio.run(RememberedRule(rule=rule, scores=scores).examine(root, scores.engine))


def taught(
    scores: RememberedScores | FakeEngine, group: Group, *, temperature: float = 1.0, **how: object
) -> list[list[float]]:
    """Returns what the teacher says of root and fork; nothing: no word."""
    config = HindsightTeacher.model_validate({"kind": "hindsight", **how})
    teacher = ScoringTeacher(
        name="later",
        engine=scores,
        coef=1.0,
        temperature=temperature,
        told=told_of(config, Renders()),
    )
    words = [asyncio.run(teacher.targets(group, index)) for index in range(2)]
    return [[float(it) for word in one.values() for it in word.logprobs] for one in words]


@pytest.mark.parametrize("source", ["feedback", "branch"])
def test_the_root_is_not_scored_again_and_a_fork_is(source: str) -> None:
    engine = FakeEngine(law_seed=3)
    scores = RememberedScores(engine=engine)
    found = examined(scores)
    assert engine.started == ["1/0/0/hindsight", "1/0/0/base"]
    group = group_of(found.insight)
    words = taught(scores, group, source=source)
    own = ["1/0/1/later"] if source == "feedback" else []
    assert engine.started[2:] == own, "the root's word was there, the fork has its own outcome"
    fresh = taught(FakeEngine(law_seed=3), group, source=source)
    assert words == fresh
    assert len(words[0]) == 4
    assert len(words[1]) == 2 * len(own)


def test_it_asks_where_the_prompt_or_the_temperature_is_another() -> None:
    for differs in ({"feedback_characters": 4}, {"temperature": 0.5}):
        engine = FakeEngine(law_seed=3)
        scores = RememberedScores(engine=engine)
        group = group_of(examined(scores).insight)
        assert len(taught(scores, group, **differs)[0]) == 4  # type: ignore[arg-type]
        assert engine.started[2:] == ["1/0/0/later", "1/0/1/later"], differs


def test_what_is_forgotten_is_asked_again() -> None:
    engine = FakeEngine(law_seed=3)
    scores = RememberedScores(engine=engine)
    group = group_of(examined(scores).insight)
    scores.forget()
    taught(scores, group)
    assert engine.started[2:] == ["1/0/0/later", "1/0/1/later"]


def test_entropies_and_likeliest_tokens_are_never_read_from_log_probabilities_alone() -> None:
    scores = RememberedScores(engine=FakeEngine())
    ask = ScoreRequest(id="r", token_ids=token_array([1, 2, 3]), start=1)

    def answer(**more: object) -> Scores:
        return asyncio.run(scores.score(replace(ask, **more)))  # type: ignore[arg-type]

    plain = answer()
    assert answer(entropy=True).entropy is not None
    assert answer(top_k=2).top_ids is not None
    np.testing.assert_array_equal(answer().logprobs, plain.logprobs)
    assert len(scores.engine.started) == 3  # type: ignore[attr-defined]


def test_of_a_root_that_the_rule_set_aside_nothing_is_said() -> None:
    told = Insight(rule="entropy", asked=1, found=1, hindsight="h", set_aside="the reflection contradicts")
    for insight in (told, None):
        assert taught(FakeEngine(), group_of(insight), source="branch") == [[], []]


FORKS = [
    "rollout.branching={roots: 1, continuations: [2, 1], min_gap: 1}",
    "rollout.branching.rule={kind: hindsight, source: {kind: feedback}}",
    "distill.teachers.later.kind=hindsight",
    "training.steps=2",
    "evaluation=null",
]


def test_in_a_run_roots_are_passed_over_once(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    score = TorchEngine.score

    async def counted(self: TorchEngine, request: ScoreRequest) -> Scores:
        asked.append(request.id)
        return await score(self, request)

    monkeypatch.setattr(TorchEngine, "score", counted)
    run = tp.train(tp.load_recipe(recipe, FORKS)).folder
    groups = list(read_groups(run / "rollouts.jsonl"))
    roots = {f"{group.id}/0/hindsight" for group in groups}
    assert roots < set(asked)
    later = sorted(request for request in asked if request.endswith("/later"))
    assert later == sorted(f"{group.id}/{index}/later" for group in groups for index in (1, 2, 3))


def test_hindsight_of_a_branch_rule_needs_one(recipe: Path) -> None:
    options = ["distill.teachers.later={kind: hindsight, source: branch}"]
    with pytest.raises(RecipeError, match="there is no such rule; take source = feedback or sibling"):
        tp.load_recipe(recipe, options)
    with pytest.raises(RecipeError, match="there is no such rule"):
        tp.load_recipe(recipe, [*options, FORKS[0], "rollout.branching.rule={kind: entropy}"])
    assert tp.load_recipe(recipe, [*options, *FORKS[:2]]).distill is not None
