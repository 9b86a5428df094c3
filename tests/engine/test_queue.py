"""The scheduler against a plain one that walks the whole queue; how little of a long queue it looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.serve import ask, decode
from turnpoint.engine import scheduler as module
from turnpoint.engine.scheduler import MOST_PARKED, Prefill, Scheduler
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.protocols import ScoreRequest
from turnpoint.types import TokenIds, token_array

Owner = Generation | Scoring
RUNNING, STEP, CAPACITY, PARKED = 3, 8, 6, 2


def generation(ids: Sequence[int]) -> Generation:
    return Generation(ask(prompt_ids=list(ids)), decode=decode, context_length=100)


def agreed(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns the length of the common prefix."""
    return next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 99)


@dataclass
class Cache:
    """Prefixes that are cached; what is too long is not."""

    known: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def match(self, ids: TokenIds) -> int:
        prefixes = (n for n in range(len(ids), 0, -1) if tuple(ids[:n].tolist()) in self.known)
        return next(prefixes, 0)

    def insert(self, ids: TokenIds) -> None:
        if len(ids) <= CAPACITY:
            self.known.update(tuple(ids[:n].tolist()) for n in range(1, len(ids) + 1))


class Plain:
    """First come first served, by a walk over everybody in every step."""

    def __init__(self) -> None:
        self.waiting: list[Prefill] = []
        self.prefilling: list[Prefill] = []
        self.waits_for: dict[Prefill, Prefill] = {}

    def submit(self, owner: Owner) -> None:
        self.waiting.append(Prefill(owner))

    def drop_abandoned(self) -> None:
        self.waiting = [it for it in self.waiting if not it.owner.abandoned]
        self.prefilling = [it for it in self.prefilling if not it.owner.abandoned]

    def leave(self, prefill: Prefill) -> None:
        self.prefilling.remove(prefill)

    def admit(self, *, decoding: int, cached: Callable[[TokenIds], int]) -> list[Prefill]:
        admitted: list[Prefill] = []
        parked = 0
        for prefill in list(self.waiting):
            held = [*self.prefilling, *admitted]
            leaders = [it for it in held if it.computed < len(it.ids) <= CAPACITY]
            rows = RUNNING - decoding - sum(isinstance(it.owner, Generation) for it in held)
            scores = STEP - sum(it.owner.unscored for it in held if isinstance(it.owner, Scoring))
            tokens = STEP - decoding - sum(len(it.ids) - it.computed for it in held)
            room = rows if isinstance(prefill.owner, Generation) else scores
            if tokens <= 0 or parked == PARKED:
                break
            if room <= 0 or self.waits_for.get(prefill) in leaders:
                continue
            prefill.computed = cached(prefill.ids)
            ahead = [it for it in leaders if agreed(it.ids.tolist(), prefill.ids.tolist()) > prefill.computed]
            if ahead and prefill.computed < len(prefill.ids):
                self.waits_for[prefill] = ahead[0]
                parked += 1
            else:
                admitted.append(prefill)
        self.prefilling += admitted
        self.waiting = [it for it in self.waiting if it not in admitted]
        return admitted


class World:
    """A scheduler in a loop: prefixes are computed and cached, generations decode, scorings are scored."""

    def __init__(self, scheduler: Scheduler | Plain) -> None:
        self.scheduler = scheduler
        self.cache = Cache()
        self.decoding: list[tuple[Owner, int]] = []
        self.steps = 0

    def step(self) -> list[Owner]:
        """Returns who started."""
        self.steps += 1
        self.scheduler.drop_abandoned()
        self.decoding = [(it, end) for it, end in self.decoding if not it.abandoned and end > self.steps]
        running = len(self.decoding)
        admitted = [it.owner for it in self.scheduler.admit(decoding=running, cached=self.cache.match)]
        budget, scores = STEP - running, STEP
        for prefill in list(self.scheduler.prefilling):
            take = min(budget, len(prefill.ids) - prefill.computed)
            prefill.computed += take
            budget -= take
            if take and prefill.complete:
                self.cache.insert(prefill.ids)
            if isinstance(prefill.owner, Scoring):
                end = min(prefill.computed + 1, prefill.owner.scored + scores)
                scores -= max(end - prefill.owner.scored, 0)
                prefill.owner.scored = max(end, prefill.owner.scored)
                done = not prefill.owner.unscored
            else:
                done = prefill.complete
            if done:
                self.scheduler.leave(prefill)
                if isinstance(prefill.owner, Generation):
                    self.decoding.append((prefill.owner, self.steps + 1 + len(prefill.ids) % 3))
        return admitted


def owner_of(ids: list[int], scored: bool) -> Owner:
    if not scored:
        return generation(ids)
    return Scoring(ScoreRequest(id="s", token_ids=token_array([*ids, 0]), start=1 + len(ids) // 2))


requests = st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=8), st.booleans())
# what happens before each step: who comes, and how many places from the front somebody is abandoned
histories = st.lists(st.tuples(st.lists(requests, max_size=5), st.integers(0, 9)), max_size=12)


@given(histories)
@settings(deadline=None, max_examples=300)
def test_starts_whom_a_plain_scheduler_starts(
    history: list[tuple[list[tuple[list[int], bool]], int]],
) -> None:
    fast = Scheduler(max_running=RUNNING, max_step_tokens=STEP, cache_tokens=CAPACITY)
    worlds = World(fast), World(Plain())
    owners: tuple[list[Owner], list[Owner]] = [], []
    for arriving, gone in [*history, *[([], 99)] * 60]:
        started: list[list[int]] = []
        for world, known in zip(worlds, owners, strict=True):
            for ids, scored in arriving:
                known.append(owner_of(ids, scored))
                world.scheduler.submit(known[-1])
            if gone < len(known):
                known[gone].abandoned = True
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "MOST_PARKED", PARKED)
                started.append([known.index(it) for it in world.step()])
        assert started[0] == started[1]
        assert worlds[0].cache.known == worlds[1].cache.known
    assert fast.idle


def shape(name: str, number: int) -> list[int]:
    """Returns the prompt of a request in a queue of a kind."""
    if name == "alone":
        return [number, 1, 2]
    if name == "groups":
        return [number // 16, 1, 2]
    if name == "alike":
        return [1] * 20 + [number]
    return [1] * (1 + number % 90)  # "nested": each begins with those before it


@pytest.mark.parametrize("name", ["alone", "groups", "alike", "nested"])
def test_a_step_looks_at_no_more_than_it_admits_and_a_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = reads = 0
    gone = dict[int, bool]()

    def abandoned(owner: Generation) -> bool:
        nonlocal reads
        reads += 1
        return gone[id(owner)]

    def abandon(owner: Generation, value: bool) -> None:
        gone[id(owner)] = value

    monkeypatch.setattr(Generation, "abandoned", property(abandoned, abandon), raising=False)
    scheduler = Scheduler(max_running=64, max_step_tokens=256, cache_tokens=1000)
    cache = set[bytes]()

    def cached(ids: TokenIds) -> int:
        nonlocal looks
        looks += 1
        return next((n for n in range(len(ids), 0, -1) if ids[:n].tobytes() in cache), 0)

    for number in range(3000):
        scheduler.submit(generation(shape(name, number)))
    started, admitted = 0, list[Prefill]()
    for step in range(40):
        looks = reads = 0
        scheduler.drop_abandoned()
        admitted = scheduler.admit(decoding=0, cached=cached)
        started += len(admitted)
        assert looks <= len(admitted) + MOST_PARKED
        assert reads <= looks + 64  # of those prefilling
        for chunk in scheduler.chunks(decoding=0):
            chunk.prefill.computed = chunk.end
        for prefill in [it for it in scheduler.prefilling if it.complete]:
            cache.update(prefill.ids[:n].tobytes() for n in range(1, len(prefill.ids) + 1))
            if step % 4:  # else it stays, and takes a row
                scheduler.leave(prefill)
    assert started >= (100 if name == "nested" else 400)


def test_a_full_batch_looks_at_nobody() -> None:
    def never(ids: TokenIds) -> int:
        raise AssertionError("nobody can start")

    scheduler = Scheduler(max_running=4, max_step_tokens=100, cache_tokens=100)
    for number in range(50):
        scheduler.submit(generation([number]))
    assert scheduler.admit(decoding=4, cached=never) == []
