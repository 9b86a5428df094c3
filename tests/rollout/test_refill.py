"""Dynamic sampling: what is set aside, what takes its place, and when it gives up."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.rollout.test_rollouter import HasB, Letters
from turnpoint.engine.fake import FakeEngine
from turnpoint.metrics import metric_values
from turnpoint.rollout import Rollouter
from turnpoint.rollout.refill import Collected, Refill, collect_step
from turnpoint.tasks import BatchOrder, TaskStream
from turnpoint.types import Group, Message, Task

NAMES = "abcdbcdacdba"  # of twelve tasks


def stream(size: int = 4) -> TaskStream:
    tasks = [
        Task(id=str(index), messages=(Message(role="user", content=name),), answer="b")
        for index, name in enumerate(NAMES)
    ]
    return TaskStream(tasks, BatchOrder(num_tasks=len(tasks), batch_size=size, seed=0))


def rewards(group: Group) -> set[float | None]:
    return {member.verdict.reward for member in group.members if member.verdict.valid}


def differ(group: Group) -> bool:
    return len(rewards(group)) > 1


class Observed:
    """Counts what the step says while it samples."""

    def __init__(self) -> None:
        self.expected = 0
        self.finished: list[str] = []
        self.advanced = 0

    def advance(self, items: int, tokens: int) -> None:
        self.advanced += items

    def expect(self, items: int) -> None:
        self.expected += items

    def finish(self, group: Group) -> None:
        self.finished.append(group.id)


def collect(tasks: TaskStream, refill: Refill | None, seen: Observed | None = None) -> Collected:
    engine = FakeEngine()
    rollouter = Rollouter(
        engine, Letters(), HasB(), samples_per_prompt=2, temperature=1.0, max_new_tokens=3, seed=5
    )
    seen = seen or Observed()
    return asyncio.run(
        collect_step(
            rollouter,
            tasks,
            step=7,
            refill=refill,
            progress=seen.advance,
            expect=seen.expect,
            finished=seen.finish,
        )
    )


def refill(rounds: int = 20) -> Refill:
    return Refill(rounds=rounds, teaches=differ, stop_when_short=False)


def test_without_a_refill_a_step_trains_on_all_that_it_samples() -> None:
    tasks, seen = stream(), Observed()
    collected = collect(tasks, None, seen)
    assert collected.kept == collected.sampled
    assert [group.id for group in collected.sampled] == ["7/0", "7/1", "7/2", "7/3"]
    assert (tasks.position, seen.expected, seen.advanced) == (4, 8, 8)
    assert (collected.missing, collected.rounds) == (0, 0)


def test_groups_without_signal_are_replaced_by_the_next_tasks() -> None:
    tasks, seen = stream(), Observed()
    collected = collect(tasks, refill(), seen)
    assert all(differ(group) for group in collected.kept)
    assert len(collected.kept) == 4
    assert not any(differ(group) for group in collected.sampled if group not in collected.kept)
    assert len(collected.sampled) > 4, "the law of the fake engine makes some groups flat"
    assert [group.id for group in collected.sampled] == [f"7/{i}" for i in range(len(collected.sampled))]
    drawn = [group.task.id for group in collected.sampled]
    assert drawn == [task.id for task in stream().take(len(drawn))]
    assert tasks.position == len(drawn), "nothing is drawn and thrown away"
    assert Counter(seen.finished) == Counter(group.id for group in collected.sampled)
    assert seen.expected == seen.advanced == 2 * len(drawn)


def test_what_was_set_aside_is_counted() -> None:
    collected = collect(stream(), refill())
    aside = [group for group in collected.sampled if not differ(group)]
    figures = metric_values(collected.metrics())
    assert figures["refill/set_aside"] == len(aside) > 0
    assert figures["refill/set_aside_tokens"] == sum(
        len(segment) for group in aside for segment in group.tree.segments[1:]
    )
    assert figures["refill/missing"] == 0
    assert figures["refill/rounds"] == collected.rounds > 0


@pytest.mark.parametrize("rounds", [1, 3])
def test_it_gives_up_after_its_rounds(rounds: int) -> None:
    tasks = stream()
    never = Refill(rounds=rounds, teaches=lambda group: False, stop_when_short=False)
    collected = collect(tasks, never)
    assert collected.kept == ()
    assert (collected.missing, collected.rounds) == (4, rounds)
    assert len(collected.sampled) == tasks.position == 4 * (1 + rounds)


def test_a_step_that_is_whole_at_once_draws_nothing_more() -> None:
    tasks = stream()
    collected = collect(tasks, Refill(rounds=5, teaches=lambda group: True, stop_when_short=True))
    assert (len(collected.kept), tasks.position, collected.rounds) == (4, 4, 0)
