"""From tasks to groups: what is recorded, what overlaps, and what is left behind when something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from turnpoint.engine.fake import FakeEngine, letters
from turnpoint.errors import EngineError, VerifierError
from turnpoint.protocols import Completion, GenerateRequest, Renderer, ScoreRequest, Verifier
from turnpoint.rollout import Rollouter
from turnpoint.types import (
    Author,
    FinishReason,
    Group,
    Message,
    RootOrigin,
    Task,
    TokenIds,
    TokenKind,
    Verdict,
    token_array,
)


@dataclass
class Letters:
    """Renders "a" as id 0, "b" as id 1 and so on; turns end with "e"."""

    stop_ids: frozenset[int] = frozenset({4})
    stop_strings: tuple[str, ...] = ()
    rendered: list[str] = field(default_factory=list[str])

    def prompt(self, messages: Sequence[Message], *, hindsight: str | None = None) -> TokenIds:
        self.rendered.append(messages[-1].content)
        return token_array([ord(letter) - ord("a") for letter in messages[-1].content])

    def turn(self, message: Message) -> TokenIds:
        return self.prompt([message])

    def text(self, token_ids: TokenIds) -> str:
        return letters(token_ids)


@dataclass
class HasB:
    """Rewards a "b"; `before` runs first and may sleep or raise."""

    before: Callable[[Task, str], float] = lambda task, text: 0.0  # returns seconds to wait
    running: int = 0

    async def verify(self, task: Task, completion: str) -> Verdict:
        self.running += 1
        try:
            await asyncio.sleep(self.before(task, completion))
        finally:
            self.running -= 1
        if completion.startswith("a"):
            return Verdict.invalid("starts with a")
        return Verdict.scored(float("b" in completion))

    async def self_check(self, task: Task) -> Verdict:
        return Verdict.scored(1.0)


def task(text: str = "abc") -> Task:
    return Task(id=f"task/{text}", messages=(Message(role="user", content=text),), answer="b")


def rollouter(engine: FakeEngine, verifier: HasB | None = None, **changes: int | float) -> Rollouter:
    renderer: Renderer = Letters()
    judge: Verifier = verifier or HasB()
    options = {"samples_per_prompt": 6, "temperature": 1.0, "max_new_tokens": 5, "seed": 0, **changes}
    return Rollouter(engine, renderer, judge, **options)  # type: ignore[arg-type]


def test_a_group_is_a_prompt_and_its_leaves() -> None:
    engine = FakeEngine()
    group = asyncio.run(rollouter(engine).group(task(), group_id="3/0"))
    assert (group.id, group.task) == ("3/0", task())
    prompt, *leaves = group.tree.segments
    assert (prompt.author, prompt.token_ids.tolist()) == (Author.PROMPT, [0, 1, 2])
    assert engine.started == [f"3/0/{i}" for i in range(6)]
    for index, (leaf, member) in enumerate(zip(leaves, group.members, strict=True)):
        request = GenerateRequest(
            id=f"3/0/{index}", prompt_ids=prompt.token_ids, max_tokens=5, stop_ids=frozenset({4})
        )
        alone = asyncio.run(FakeEngine().generate(request))
        assert (leaf.parent, leaf.parent_length, leaf.author) == (0, 3, Author.POLICY)
        assert leaf.token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_array_equal(leaf.logprobs, alone.logprobs)
        assert (member.leaf, member.segments) == (leaf.id, (leaf.id,))
        assert (member.text, member.finish, member.origin) == (alone.text, alone.finish, RootOrigin())
        assert member.verdict == asyncio.run(HasB().verify(task(), alone.text))
    assert {member.finish for member in group.members} == {FinishReason.STOP, FinishReason.LENGTH}
    assert {member.verdict.valid for member in group.members} == {True, False}


def test_a_path_is_what_the_engine_saw() -> None:
    engine = FakeEngine()
    group = asyncio.run(rollouter(engine, temperature=0.6).group(task(), group_id="0/0"))
    for leaf in group.tree.leaves():
        request = ScoreRequest(id="again", token_ids=group.tree.path_ids(leaf), start=3, temperature=0.6)
        scores = asyncio.run(engine.score(request))
        np.testing.assert_array_equal(scores.logprobs, group.tree.segments[leaf].logprobs)


def test_settings_reach_the_engine() -> None:
    def texts(**changes: int | float) -> list[str]:
        group = asyncio.run(rollouter(FakeEngine(), None, **changes).group(task(), group_id="0/0"))
        return [member.text for member in group.members]

    base = texts()
    assert texts() == base
    assert texts(seed=1) != base
    assert len(set(texts(temperature=1e-6))) == 1
    assert max(map(len, texts(max_new_tokens=9))) > 5
    assert len(texts(samples_per_prompt=2)) == 2


def test_stop_strings_of_the_renderer_end_a_rollout() -> None:
    renderer = Letters(stop_ids=frozenset(), stop_strings=("b",))
    judge = HasB()
    options = {"samples_per_prompt": 6, "temperature": 1.0, "max_new_tokens": 40, "seed": 0}
    group = asyncio.run(
        Rollouter(FakeEngine(), renderer, judge, **options).group(task(), group_id="0/0")  # type: ignore[arg-type]
    )
    for member in group.members:
        assert "b" not in member.text
        assert group.tree.segments[member.leaf].token_ids[-1] == 1
    assert renderer.rendered == ["abc"]  # once per group


def test_account_counts_every_token_once() -> None:
    group = asyncio.run(rollouter(FakeEngine()).group(task(), group_id="0/0"))
    tokens = group.account.tokens
    assert tokens[TokenKind.PROMPT] + tokens[TokenKind.CACHED] == 6 * 3
    assert tokens[TokenKind.CACHED] == 5 * 2  # all but the first find all but the last token
    assert tokens[TokenKind.ROOT] == sum(group.num_generated(i) for i in range(6))


def test_account_names_the_slowest_verification() -> None:
    slow = HasB(before=lambda task, text: 0.05 if "c" in text else 0.0)
    group = asyncio.run(rollouter(FakeEngine(), slow).group(task(), group_id="0/0"))
    seconds = group.account.seconds
    assert set(seconds) == {"generate", "verify", "slowest_verify"}
    assert 0.05 <= seconds["slowest_verify"] < seconds["verify"]
    slow_ones = sum("c" in member.text for member in group.members)
    assert slow_ones >= 2
    assert seconds["verify"] >= 0.05 * slow_ones


def test_verification_overlaps_other_decoding() -> None:
    # The last completion is held back until the first verdict is in: a barrier between the two would hang.
    verified = asyncio.Event()

    class Held:
        def __init__(self) -> None:
            self.inner = FakeEngine()
            self.capabilities = self.inner.capabilities
            self.score = self.inner.score

        async def generate(self, request: GenerateRequest) -> Completion:
            if request.id == "0/0/5":
                await verified.wait()
            return await self.inner.generate(request)

    def seen(task: Task, text: str) -> float:
        verified.set()
        return 0.0

    async def run() -> Group:
        options = {"samples_per_prompt": 6, "temperature": 1.0, "max_new_tokens": 5, "seed": 0}
        held = Rollouter(Held(), Letters(), HasB(before=seen), **options)  # type: ignore[arg-type]
        return await asyncio.wait_for(held.group(task(), group_id="0/0"), timeout=30)

    assert len(asyncio.run(run()).members) == 6


def test_collect_keeps_order_and_runs_groups_together() -> None:
    tasks = [task("a"), task("b"), task("a")]
    engine = FakeEngine(delays={"4/0/0": 0.05})
    progress: list[tuple[int, int]] = []
    finished: list[Group] = []
    groups = asyncio.run(
        rollouter(engine, samples_per_prompt=2).collect(
            tasks,
            step=4,
            progress=lambda items, tokens: progress.append((items, tokens)),
            finished=finished.append,
        )
    )
    assert [group.id for group in groups] == ["4/0", "4/1", "4/2"]
    assert [group.task.id for group in groups] == ["task/a", "task/b", "task/a"]
    assert set(engine.started) == {f"4/{g}/{m}" for g in range(3) for m in range(2)}
    # a task that comes twice is sampled twice
    assert [m.text for m in groups[0].members] != [m.text for m in groups[2].members]
    assert [items for items, _ in progress] == [1] * 6
    assert sum(tokens for _, tokens in progress) == sum(g.account.tokens[TokenKind.ROOT] for g in groups)
    # each group is handed on when it is whole; the first one waits for its slow rollout
    assert sorted(group.id for group in finished) == ["4/0", "4/1", "4/2"]
    assert finished[-1].id == "4/0"


def test_a_group_does_not_depend_on_its_neighbours() -> None:
    alone = asyncio.run(rollouter(FakeEngine()).group(task("b"), group_id="4/1"))
    among = asyncio.run(rollouter(FakeEngine()).collect([task("a"), task("b"), task("c")], step=4))[1]
    assert (among.tree, among.members) == (alone.tree, alone.members)


def test_no_tasks_no_groups() -> None:
    assert asyncio.run(rollouter(FakeEngine()).collect([], step=0)) == []


def leftovers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("fault", ["engine", "verifier"])
def test_first_error_ends_everything(fault: str) -> None:
    delays = {f"0/{g}/{m}": 60.0 for g in range(3) for m in range(1, 6)}
    engine = FakeEngine(failing={"0/1/0"} if fault == "engine" else (), delays=delays)

    def broken(task: Task, text: str) -> float:
        if fault == "verifier" and task.id == "task/b":
            raise RuntimeError("no\nsuch judge")
        return 60.0

    verifier = HasB(before=broken)

    async def run() -> None:
        expected = EngineError if fault == "engine" else VerifierError
        with pytest.raises(expected, match="0/1/0") as caught:
            await rollouter(engine, verifier).collect([task("a"), task("b"), task("c")], step=0)
        assert leftovers() == []
        if fault == "verifier":
            assert isinstance(caught.value.__cause__, RuntimeError)
            assert str(caught.value) == (
                "task task/b, rollout 0/1/0: the verifier raised RuntimeError: no such judge"
            )

    asyncio.run(run())
    assert engine.running == set()
    assert verifier.running == 0


def test_cancelling_collect_leaves_nothing() -> None:
    engine = FakeEngine(delays={f"0/0/{m}": 60.0 for m in range(3)})
    verifying = asyncio.Event()

    def never_ends(task: Task, text: str) -> float:
        if verifier.running == 3:
            verifying.set()
        return 60.0

    verifier = HasB(before=never_ends)

    async def run() -> None:
        collecting = asyncio.create_task(rollouter(engine, verifier).collect([task()], step=0))
        await verifying.wait()
        assert len(engine.running) == 3
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert leftovers() == []

    asyncio.run(run())
    assert engine.running == set()
    assert verifier.running == 0


def test_an_error_in_the_callback_is_an_error() -> None:
    def closed(items: int, tokens: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(rollouter(FakeEngine()).collect([task()], step=0, progress=closed))


def test_refuses_a_group_of_none() -> None:
    with pytest.raises(ValueError, match="at least one rollout"):
        rollouter(FakeEngine(), samples_per_prompt=0)
