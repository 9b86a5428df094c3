"""Each rule against the exact law of a fake engine: what it scores, what it asks, when it stands back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from turnpoint.branching import texts
from turnpoint.branching.candidates import Candidates
from turnpoint.branching.common import Selection
from turnpoint.branching.entropy import EntropyRule
from turnpoint.branching.gate import Gate
from turnpoint.branching.hindsight import HindsightRule, Source
from turnpoint.branching.random import RandomRule
from turnpoint.branching.reflector import Reflector
from turnpoint.branching.steps import StepsRule
from turnpoint.branching.surprisal import SurprisalRule
from turnpoint.engine.fake import FakeEngine, letters
from turnpoint.protocols import (
    BranchRule,
    Capabilities,
    Completion,
    Examination,
    GenerateRequest,
    Renderer,
    Root,
    ScoreRequest,
    Scores,
)
from turnpoint.types import (
    FinishReason,
    Message,
    Task,
    TokenIds,
    TokenKind,
    Verdict,
    float_array,
    token_array,
)

TASK = Task(id="t", messages=(Message(role="user", content="cab"),), answer="b")
ROOT_IDS = [1, 3, 0, 2, 2, 1, 0, 4]
STOP = 4


@dataclass
class Told:
    """Renders a letter as its id; hindsight is an id that depends on its text, so that it changes the law."""

    stop_ids: frozenset[int] = frozenset({STOP})
    stop_strings: tuple[str, ...] = ()
    told: list[str] = field(default_factory=list[str])

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        ids = [ord(letter) - ord("a") for letter in messages[-1].content if letter in "abcde"]
        if hindsight is not None:
            self.told.append(hindsight)
        return token_array(ids if hindsight is None else [*ids, 3, len(hindsight) % 5])

    def turn(self, message: Message) -> TokenIds:
        return self.prompt([message])

    def text(self, token_ids: TokenIds) -> str:
        return letters(token_ids).replace("c", "\n")  # "c" ends a line


@dataclass
class Asked:
    """A fake engine whose policy answers what it is asked as it was told to."""

    answer: str = "OUTCOME: FAILURE\nSUMMARY: It went another way."
    context_length: int = 4000
    fake: FakeEngine = field(default_factory=lambda: FakeEngine(law_seed=3, context_length=4000))
    questions: list[GenerateRequest] = field(default_factory=list[GenerateRequest])
    scored: list[ScoreRequest] = field(default_factory=list[ScoreRequest])

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name="asked",
            context_length=self.context_length,
            entropy=True,
            max_top_k=0,
            score_temperature=True,
            prefix_cache=True,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        self.questions.append(request)
        return Completion(
            token_ids=token_array([0, 1, STOP]),
            logprobs=float_array([-1.0] * 3),
            policy_version=0,
            finish=FinishReason.STOP,
            text=self.answer,
        )

    async def score(self, request: ScoreRequest) -> Scores:
        self.scored.append(request)
        return await self.fake.score(request)


def root(reward: float = 0.0, feedback: str = "No.", *, solved_by: tuple[str, ...] = ()) -> Root:
    return Root(
        id="1/0/0",
        task=TASK,
        prompt_ids=token_array([2, 0, 1]),
        completion=Completion(
            token_ids=token_array(ROOT_IDS),
            logprobs=float_array(np.arange(8.0) / -8),
            policy_version=0,
            finish=FinishReason.STOP,
            text="".join(letters(token_array(ROOT_IDS[:-1]))),
        ),
        verdict=Verdict.scored(reward, feedback=feedback),
        solved_by=solved_by,
    )


def selection(count: int = 2, min_gap: int = 1) -> Selection:
    candidates = Candidates(letters, stop_ids=frozenset({STOP}))
    return Selection(count=count, candidates=candidates, min_gap=min_gap, skip_first=1, skip_last=0)


def reflector() -> Reflector:
    renderer: Renderer = Told()
    return Reflector(renderer=renderer, max_tokens=50, temperature=1.0, seed=0)


def hindsight(source: Source = Source.FEEDBACK, **changes: object) -> HindsightRule:
    renderer: Renderer = Told()
    options: dict[str, object] = {
        "selection": selection(),
        "renderer": renderer,
        "source": source,
        "reflector": reflector() if source is Source.REFLECTION else None,
        "gate": Gate(threshold=0.9, steps=2) if source is Source.REFLECTION else None,
        "feedback_characters": 100,
        **changes,
    }
    return HindsightRule(**options)  # type: ignore[arg-type]


def examine(rule: BranchRule, it: Root | None = None, engine: Asked | None = None) -> Examination:
    return asyncio.run(rule.examine(it or root(), engine or Asked()))


def laws(prompt: Sequence[int]) -> npt.NDArray[np.float64]:
    """[n, V] the law of each token of the root after `prompt`."""
    engine = FakeEngine(law_seed=3)
    return np.array([engine.law([*prompt, *ROOT_IDS[:index]]) for index in range(len(ROOT_IDS))])


def chosen(scores: npt.NDArray[np.float64]) -> list[int]:
    """The two best of the tokens 1..6: the first and the stop token are none."""
    return [int(at) + 1 for at in np.argsort(-scores[1:7], kind="stable")[:2]]


def positions(found: Examination) -> list[int]:
    return [point.position for point in found.points]


# --- what each scores ---------------------------------------------------------------------------


def test_hindsight_is_the_change_of_the_log_probability_under_h() -> None:
    rule = hindsight()
    found = examine(rule)
    told = texts.hindsight("No.")
    base = np.log(laws([2, 0, 1])[range(8), ROOT_IDS])
    under = np.log(laws([2, 0, 1, 3, len(told) % 5])[range(8), ROOT_IDS])
    assert found.insight.hindsight == told
    assert found.insight.quantities["hindsight"] == pytest.approx(under - base, abs=1e-5)
    assert positions(found) == chosen(np.abs(under - base))
    assert [point.score for point in found.points] == pytest.approx(
        np.abs(under - base)[positions(found)], abs=1e-5
    )
    assert {point.rule for point in found.points} == {"hindsight"}
    assert found.account.tokens[TokenKind.SCORED] == 16


def test_of_the_prompts_under_which_a_root_is_scored_only_what_is_not_cached_was_prefilled() -> None:
    engine = Asked()
    told = examine(hindsight(base_from_decode=True), engine=engine).account.tokens
    assert (told[TokenKind.PROMPT], told[TokenKind.CACHED]) == (5, 0)
    again = examine(hindsight(base_from_decode=True), engine=engine).account.tokens
    assert (again[TokenKind.PROMPT], again[TokenKind.CACHED]) == (0, 5)
    base = examine(EntropyRule(selection=selection()), engine=engine).account.tokens
    assert (base[TokenKind.PROMPT], base[TokenKind.CACHED]) == (0, 3)  # the two prompts begin alike


def test_other_forms_of_the_score() -> None:
    law = laws([2, 0, 1])[range(8), ROOT_IDS]
    under = laws([2, 0, 1, 3, len(texts.hindsight("No.")) % 5])[range(8), ROOT_IDS]
    change = np.log(under) - np.log(law)
    assert positions(examine(hindsight(direction="signed"))) == chosen(-change)
    weighted = chosen(np.abs(change) * (1 - law))
    assert positions(examine(hindsight(weigh_alternatives=True))) == weighted
    falls = [at for at in range(1, 7) if change[at] < 0]
    rule = hindsight(direction="decrease", selection=selection(count=6))
    assert sorted(positions(examine(rule))) == falls
    assert 0 < len(falls) < 6


def test_hindsight_that_says_nothing_changes_nothing() -> None:
    class Deaf(Told):
        def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
            return super().prompt(messages)

    found = examine(hindsight(renderer=Deaf()))
    assert found.insight.quantities["hindsight"].tolist() == [0.0] * 8
    assert positions(found) == [1, 2]  # all equal: the earlier


def test_the_base_can_be_what_was_sampled() -> None:
    engine = Asked()
    found = examine(hindsight(base_from_decode=True), engine=engine)
    assert [request.id for request in engine.scored] == ["1/0/0/hindsight"]
    told = len(texts.hindsight("No.")) % 5
    under = np.log(laws([2, 0, 1, 3, told])[range(8), ROOT_IDS])
    assert found.insight.quantities["hindsight"] == pytest.approx(under + np.arange(8) / 8, abs=1e-5)


def test_entropy_and_surprisal_are_those_of_the_law() -> None:
    law = laws([2, 0, 1])
    entropy, surprisal = -(law * np.log(law)).sum(axis=1), -np.log(law[range(8), ROOT_IDS])
    found = examine(EntropyRule(selection=selection()))
    assert found.insight.quantities["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert positions(found) == chosen(entropy)
    found = examine(SurprisalRule(selection=selection()))
    assert found.insight.quantities["surprisal"] == pytest.approx(surprisal, abs=1e-5)
    assert positions(found) == chosen(surprisal)


def test_random_depends_on_seed_and_root_and_reaches_everything() -> None:
    def first(seed: int) -> int:
        return positions(examine(RandomRule(selection=selection(count=1), seed=seed)))[0]

    assert first(5) == first(5)
    assert {first(seed) for seed in range(60)} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    "rule", [hindsight(), EntropyRule(selection=selection()), RandomRule(selection=selection(), seed=0)]
)
def test_a_root_of_one_token_has_no_point(rule: BranchRule) -> None:
    whole = root()
    short = Root(
        id=whole.id,
        task=whole.task,
        prompt_ids=whole.prompt_ids,
        completion=Completion(
            token_ids=token_array([1]),
            logprobs=float_array([-1.0]),
            policy_version=0,
            finish=FinishReason.LENGTH,
            text="b",
        ),
        verdict=whole.verdict,
    )
    found = examine(rule, short)
    assert (found.points, found.insight.asked, found.insight.found) == ((), 2, 0)


# --- where hindsight comes from, and when it stands back -----------------------------------------


def test_the_reflection_is_asked_of_the_policy_and_told_with_the_record() -> None:
    engine = Asked()
    found = examine(hindsight(Source.REFLECTION), engine=engine)
    (question,) = engine.questions
    assert question.id == "1/0/0/reflection"
    assert found.insight.rule == "hindsight"
    assert found.insight.reflection == engine.answer
    assert found.insight.agrees is True
    assert found.insight.hindsight == texts.hindsight("No.", engine.answer)
    assert found.account.tokens[TokenKind.REFLECTION] == 3


@pytest.mark.parametrize(
    ("reward", "answer", "said"),
    [
        (1.0, "OUTCOME: FAILURE\nSUMMARY: x", "the reflection says FAILURE, the verifier 1"),
        (0.0, "outcome: **success**", "the reflection says SUCCESS, the verifier 0"),
        (0.0, "Ich weiss es nicht.", "the reflection says no outcome, the verifier 0"),
        (0.0, "", "the reflection says no outcome, the verifier 0"),
    ],
)
def test_a_reflection_that_contradicts_the_verifier_leaves_it_to_entropy(
    reward: float, answer: str, said: str
) -> None:
    found = examine(hindsight(Source.REFLECTION), root(reward), Asked(answer=answer))
    assert (found.insight.rule, found.insight.set_aside) == ("entropy", said)
    assert found.insight.agrees is False
    assert found.insight.reflection == answer
    assert positions(found) == positions(examine(EntropyRule(selection=selection())))
    believed = examine(hindsight(Source.REFLECTION, gate=None), root(reward), Asked(answer=answer))
    assert believed.insight.rule == "hindsight"


def test_the_gate_closes_on_a_bad_run_and_opens_again() -> None:
    gate = Gate(threshold=0.9, steps=2)
    rule = hindsight(Source.REFLECTION, gate=gate)
    assert (gate.agreement, gate.closed) == (None, False)
    gate.observe([1.0, 0.7])
    found = examine(rule)
    assert found.insight.rule == "entropy"
    assert found.insight.agrees is True  # still asked, so that it can open
    assert "agreed with the verifier in 85% of recent roots, under 90%" in found.insight.set_aside
    gate.observe([1.0, 1.0])
    assert examine(rule).insight.rule == "hindsight"


def test_a_sibling_that_solved_it_is_shown_else_the_record() -> None:
    found = examine(hindsight(Source.SIBLING), root(solved_by=("bd", "bb")))
    assert found.insight.hindsight == texts.solved_hindsight("bd")
    assert examine(hindsight(Source.SIBLING)).insight.hindsight == texts.hindsight("No.")
    assert hindsight(Source.SIBLING).needs_siblings
    assert not hindsight().needs_siblings


def test_long_feedback_is_cut() -> None:
    found = examine(hindsight(), root(feedback="x" * 101))
    assert found.insight.hindsight == texts.hindsight("x" * 100 + texts.CUT)


def test_what_does_not_fit_into_the_context_leaves_it_to_entropy() -> None:
    found = examine(hindsight(), engine=Asked(context_length=12))
    assert found.insight.set_aside == "hindsight and root are 13 tokens, more than the context"
    found = examine(hindsight(Source.REFLECTION), engine=Asked(context_length=40))
    assert (found.insight.rule, found.insight.set_aside) == ("entropy", "the reflection has no room")


def test_without_feedback_the_reward_is_the_record_and_a_cut_off_attempt_is_said_to_be_one() -> None:
    assert texts.record(root(0.5, ""), most=99) == "The attempt earned a reward of 0.5."


# --- the steps of the reflection baseline --------------------------------------------------------


def steps(answer: str) -> Examination:
    renderer: Renderer = Told()
    lines = Candidates(Told().text, stop_ids=frozenset({STOP}))
    rule = StepsRule(
        selection=Selection(count=2, candidates=lines, min_gap=1, skip_first=1, skip_last=0),
        renderer=renderer,
        reflector=reflector(),
        feedback_characters=99,
    )
    return examine(rule, engine=Asked(answer=answer))


def test_it_forks_where_a_named_line_begins() -> None:
    # b d a \n | \n: a line without text is no step | b a and the stop token
    found = steps("STEP: 2\nSTEP2: 1")
    assert positions(found) == [5]
    assert (found.insight.asked, found.insight.found, found.insight.set_aside) == (2, 1, "")
    assert found.points[0].rule == "reflection"


@pytest.mark.parametrize(("answer", "why"), [("", "names no step"), ("STEP: 7", "names no step")])
def test_an_answer_that_cannot_be_used_is_counted(answer: str, why: str) -> None:
    found = steps(answer)
    assert found.points == ()
    assert why in found.insight.set_aside
    assert found.account.tokens[TokenKind.REFLECTION] == 3


# --- which tokens --------------------------------------------------------------------------------


def test_blanks_punctuation_and_what_has_no_text() -> None:
    words = {0: "a", 1: " ", 2: ".", 3: "", 4: "!?", 5: "b.", 6: "\N{REPLACEMENT CHARACTER}", 7: "<|end|>"}

    def text(ids: TokenIds) -> str:
        return "".join(words[token] for token in ids.tolist())

    ids = token_array(range(8))
    stops = frozenset({7})
    assert Candidates(text, stop_ids=stops).mask(ids).tolist() == [1, 0, 1, 0, 1, 1, 1, 0]
    both = Candidates(text, stop_ids=stops, blanks=True, punctuation=False)
    assert both.mask(ids).tolist() == [1, 1, 0, 0, 0, 1, 1, 0]


def test_half_a_character_in_feedback_is_replaced_and_two_halves_are_joined() -> None:
    told = texts.record(root(feedback="\ud800 ok \ud83d\ude00"), most=100)
    assert told == "\N{REPLACEMENT CHARACTER} ok \N{GRINNING FACE}"
