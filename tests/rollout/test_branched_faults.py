"""Groups that fork, when something breaks or is unusual: nothing is left running, and the error says what."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.branching.test_rules import Told
from tests.engine.serve import make_engine
from tests.rollout.test_branched import At
from tests.rollout.test_rollouter import leftovers, task
from tests.tiny import tiny_tokenizer
from turnpoint.branching import texts
from turnpoint.branching.candidates import Candidates
from turnpoint.branching.common import Selection
from turnpoint.branching.hindsight import HindsightRule, Source
from turnpoint.branching.reflector import Reflector
from turnpoint.branching.steps import StepsRule
from turnpoint.engine.fake import FakeEngine
from turnpoint.errors import EngineError, VerifierError
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import BranchRule, Engine, Renderer, Verifier
from turnpoint.rollout.branched import Branching
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import BranchOrigin, FinishReason, Group, RootOrigin, Task, TokenKind, Verdict

LONG = 60.0


def hindsight(renderer: Renderer, *, max_tokens: int = 4, **changes: Any) -> HindsightRule:
    """The paper's rule, with reflections and two points."""
    return HindsightRule(
        selection=Selection(
            count=2,
            candidates=Candidates(renderer.text, stop_ids=renderer.stop_ids),
            min_gap=1,
            skip_first=1,
            skip_last=0,
        ),
        renderer=renderer,
        source=Source.REFLECTION,
        reflector=Reflector(renderer=renderer, max_tokens=max_tokens, temperature=1.0, seed=0),
        gate=None,
        feedback_characters=changes.pop("feedback_characters", 2000),
        **changes,
    )


def rollouter(
    engine: Engine,
    verifier: Verifier | None = None,
    *,
    rule: BranchRule | None = None,
    renderer: Renderer | None = None,
    roots: int = 2,
    continuations: tuple[int, ...] = (2, 1),
    deterministic: bool = False,
    max_new_tokens: int = 6,
    temperature: float = 1.0,
) -> Rollouter:
    speaks: Renderer = renderer or Told(stop_ids=frozenset())
    judge: Verifier = verifier or Judge()
    branching = Branching(
        rule=rule or hindsight(speaks),
        roots=roots,
        continuations=continuations,
        deterministic=deterministic,
    )
    return Rollouter(
        engine,
        speaks,
        judge,
        samples_per_prompt=branching.group_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=0,
        branching=branching,
    )


@dataclass
class Judge:
    """One verdict on everything; `before` gets the number of the call, raises or says how long to wait."""

    before: Callable[[int], float] = lambda call: 0.0
    verdict: Verdict = field(default_factory=lambda: Verdict.scored(0.0, feedback="No."))
    calls: int = 0
    running: int = 0

    async def verify(self, task: Task, completion: str) -> Verdict:
        self.calls += 1
        self.running += 1
        try:
            await asyncio.sleep(self.before(self.calls))
        finally:
            self.running -= 1
        return self.verdict

    async def self_check(self, task: Task) -> Verdict:
        return self.verdict


TASKS = [task("ab"), task("ba"), task("cab")]
PHASES = ["0/1/0", "0/1/0/reflection", "0/1/0/hindsight", "0/1/0/base", "0/1/3"]


def run_within(main: Callable[[], Coroutine[Any, Any, None]], seconds: float = 30.0) -> None:
    """Runs it as the only task of its loop."""

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await main()

    asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  nothing says when
        await asyncio.sleep(0.001)


def fake(**options: Any) -> FakeEngine:
    return FakeEngine(law_seed=3, context_length=4000, **options)


# --- what breaks --------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("broken", PHASES)
def test_an_engine_error_in_any_phase_names_its_request_and_ends_everything(
    broken: str, deterministic: bool
) -> None:
    waits = {f"0/{group}/{member}": LONG for group in (0, 2) for member in range(2, 8)}
    engine = fake(failing={broken}, delays={**waits, broken: 0.02})
    judge = Judge()

    async def run() -> None:
        with pytest.raises(EngineError, match=f"request {broken}: failed"):
            await rollouter(engine, judge, deterministic=deterministic).collect(TASKS, step=0)
        assert leftovers() == []

    run_within(run)
    assert engine.running == set()
    assert judge.running == 0


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_root_that_fails_while_all_others_wait_for_it(deterministic: bool) -> None:
    engine = fake(failing={"0/2/1"}, delays={"0/2/1": 0.05})

    async def run() -> None:
        with pytest.raises(EngineError, match="0/2/1"):
            await rollouter(engine, deterministic=deterministic).collect(TASKS, step=0)
        assert leftovers() == []

    run_within(run)
    forked = [name for name in engine.started if name.endswith("reflection")]
    assert bool(forked) is not deterministic  # nobody forks before the last root is judged


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_verifier_that_raises_on_a_continuation_is_named_with_it(deterministic: bool) -> None:
    def after_roots(call: int) -> float:
        if call > 6:
            raise RuntimeError("no such judge")
        return 0.0

    engine, judge = fake(), Judge(before=after_roots)

    async def run() -> None:
        with pytest.raises(
            VerifierError, match=r"task task/\w+, rollout 0/\d/[2-7]: the verifier raised Run"
        ):
            await rollouter(engine, judge, deterministic=deterministic).collect(TASKS, step=0)
        assert leftovers() == []

    run_within(run)
    assert engine.running == set()
    assert judge.running == 0


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_cancelling_in_any_phase_leaves_nothing(phase: str, deterministic: bool) -> None:
    engine, judge = fake(delays={phase: LONG}), Judge()

    async def run() -> None:
        rollouts = rollouter(engine, judge, deterministic=deterministic)
        collecting = asyncio.create_task(rollouts.collect(TASKS, step=0))
        await until(lambda: engine.running == {phase})  # the others are done, or wait for it
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert leftovers() == []

    run_within(run)
    assert engine.running == set()
    assert judge.running == 0


@pytest.mark.parametrize("call", [1, 7, 24])
def test_cancelling_while_a_verdict_is_awaited_leaves_nothing(call: int) -> None:
    engine = fake()
    judge = Judge(before=lambda number: LONG if number == call else 0.0)

    async def run() -> None:
        collecting = asyncio.create_task(rollouter(engine, judge, deterministic=True).collect(TASKS, step=0))
        await until(lambda: judge.running == 1 and not engine.running)
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert leftovers() == []

    run_within(run)
    assert judge.running == 0


def test_an_engine_serves_on_after_a_step_that_was_cancelled_as_it_forked() -> None:
    engine = make_engine(context_length=2000)
    renderer = chat()
    make: dict[str, Any] = {"rule": hindsight(renderer), "renderer": renderer, "max_new_tokens": 40}

    async def run() -> list[Group]:
        judge = Judge()
        first = asyncio.create_task(rollouter(engine, judge, **make).collect(TASKS, step=0))
        await until(lambda: judge.calls >= 7)  # roots are judged, a continuation too
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert [it for it in leftovers() if "_run_steps" not in repr(it)] == []
        return await rollouter(engine, **make).collect(TASKS, step=1)

    assert [len(group.members) for group in asyncio.run(run())] == [8, 8, 8]


# --- what is unusual ----------------------------------------------------------------------------


def chat(stop_ids: frozenset[int] = frozenset()) -> ChatRenderer:
    return ChatRenderer(tiny_tokenizer(), stop_ids=stop_ids)


def group_of(engine: Engine, **options: Any) -> Group:
    return asyncio.run(rollouter(engine, **options).group(options.pop("task", task("cab")), group_id="1/0"))


def ids_of(group: Group) -> list[list[int]]:
    return [group.tree.path_ids(member.leaf).tolist() for member in group.members]


@pytest.mark.parametrize("limits", [{"cache_tokens": 0}, {"cache_tokens": 12}, {"max_running": 1}])
def test_a_small_engine_grows_the_same_tree(limits: dict[str, Any]) -> None:
    options: dict[str, Any] = {"rule": At((3, 11)), "renderer": chat(), "max_new_tokens": 12}
    whole = group_of(make_engine(), **options)
    small = group_of(make_engine(**limits), **options)
    assert ids_of(small) == ids_of(whole)
    for one, other in zip(small.tree.segments[1:], whole.tree.segments[1:], strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_a_point_at_the_last_token_draws_that_token_alone() -> None:
    group = group_of(fake(), rule=At((5,)), continuations=(6,))
    suffixes = [group.num_generated(index) for index in range(2, 14)]
    assert suffixes == [1] * 12
    assert len({ids[-1] for ids in ids_of(group)}) > 1
    assert {it.finish for it in group.members} == {FinishReason.LENGTH}


def test_a_root_cut_off_by_the_context_forks_at_its_last_token() -> None:
    engine = FakeEngine(law_seed=3, context_length=8)
    group = group_of(engine, rule=At((4,)), max_new_tokens=50)
    assert {len(ids) for ids in ids_of(group)} == {8}
    assert {group.num_generated(index) for index in range(2, 8)} == {1}


def test_roots_that_are_the_same_fork_each_for_itself() -> None:
    group = group_of(fake(), rule=At((2, 4)), temperature=0.0)
    assert len({tuple(ids) for ids in ids_of(group)}) == 1
    origins = [it.origin for it in group.members]
    assert [it.root for it in origins if isinstance(it, BranchOrigin)] == [0] * 3 + [1] * 3
    assert len(group.tree.segments) == 1 + 8


def test_a_group_whose_roots_all_have_no_verdict_is_sampled_from_the_prompt() -> None:
    engine = fake()
    group = group_of(engine, verifier=Judge(verdict=Verdict.invalid("timed out")))
    assert [type(it.origin) for it in group.members] == [RootOrigin] * 8
    assert group.account.tokens.get(TokenKind.SUFFIX, 0) == 0
    assert group.account.tokens[TokenKind.ROOT] == 8 * 6
    assert engine.started == [f"1/0/{index}" for index in range(8)]  # no reflection, no score


def test_one_root_and_one_continuation() -> None:
    group = group_of(fake(), roots=1, continuations=(1,))
    assert [type(it.origin) for it in group.members] == [RootOrigin, BranchOrigin]


# --- what the policy is told --------------------------------------------------------------------

ODD = ["\ud800 and \udc00\ud83d", "a\0b", "<|end|><|assistant|>", "x" * 1_000_000, "\u2028" * 50, " \n\t "]


@pytest.mark.parametrize("feedback", ODD, ids=["surrogates", "nul", "special", "long", "lines", "blank"])
@pytest.mark.parametrize("rule", ["hindsight", "steps"])
def test_feedback_of_any_text_reaches_the_policy(rule: str, feedback: str) -> None:
    renderer = chat()
    scores = hindsight(renderer)
    assert scores.reflector is not None
    asks = StepsRule(
        selection=scores.selection, renderer=renderer, reflector=scores.reflector, feedback_characters=2000
    )
    group = group_of(
        make_engine(context_length=9000),
        rule=scores if rule == "hindsight" else asks,
        renderer=renderer,
        verifier=Judge(verdict=Verdict.scored(0.0, feedback=feedback)),
        max_new_tokens=60,
    )
    insights = [it.insight for it in group.members[:2]]
    assert len(group.members) == 8
    if rule == "hindsight":
        assert all(it is not None and it.set_aside == "" and it.found == 2 for it in insights)


def test_a_reflection_that_hits_its_limit_is_used_as_far_as_it_came() -> None:
    renderer = chat()
    group = group_of(make_engine(context_length=2000), rule=hindsight(renderer), renderer=renderer)
    assert group.account.tokens[TokenKind.REFLECTION] == 2 * 4
    for member in group.members[:2]:
        assert member.insight is not None
        assert member.insight.set_aside == ""
        assert member.insight.reflection == member.insight.hindsight.partition("[Reflection]\n")[2]


def test_hindsight_that_just_fits_is_scored_and_one_token_more_is_not() -> None:
    renderer = chat()
    rule = dataclasses.replace(hindsight(renderer), source=Source.FEEDBACK, reflector=None)
    told = renderer.prompt(task("cab").messages, hindsight=texts.hindsight("No.\n" + texts.CUT_OFF))
    for context, set_aside in [
        (len(told) + 6, ""),
        (len(told) + 5, f"hindsight and root are {len(told) + 6} tokens, more than the context"),
    ]:
        group = group_of(make_engine(context_length=context), rule=rule, renderer=renderer)
        for member in group.members[:2]:
            assert member.insight is not None
            assert (member.insight.set_aside, member.insight.found) == (set_aside, 2)


def test_a_reflection_that_just_fits_is_written_and_one_token_more_is_not() -> None:
    renderer = chat()
    for spare, set_aside in [(0, ""), (-1, "the reflection has no room")]:
        plain = group_of(make_engine(), rule=At(()), renderer=renderer)  # the same roots
        asked = [
            texts.reflection_request(plain.task, it.text, "No.\n" + texts.CUT_OFF) for it in plain.members[:2]
        ]
        context = max(len(renderer.prompt([it])) for it in asked) + 4 + spare
        group = group_of(make_engine(context_length=context), rule=hindsight(renderer), renderer=renderer)
        told = [it.insight.set_aside for it in group.members[:2] if it.insight is not None]
        assert set_aside in told
        assert set(told) <= {"", set_aside}
        assert len(group.members) == 8
