"""Who starts when, within which limits."""

from __future__ import annotations

from collections.abc import Callable

from tests.engine.serve import ask, decode
from turnpoint.engine.scheduler import Prefill, Scheduler
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.protocols import ScoreRequest
from turnpoint.types import TokenIds, token_array


def generation(ids: list[int]) -> Generation:
    return Generation(ask(prompt_ids=ids), decode=decode, context_length=100)


def make(*, max_running: int = 8, max_step_tokens: int = 100, cache_tokens: int = 1000) -> Scheduler:
    return Scheduler(max_running=max_running, max_step_tokens=max_step_tokens, cache_tokens=cache_tokens)


def nothing(ids: TokenIds) -> int:
    return 0


def admit(
    scheduler: Scheduler, *, decoding: int = 0, cached: Callable[[TokenIds], int] = nothing
) -> list[list[int]]:
    return [prefill.ids.tolist() for prefill in scheduler.admit(decoding=decoding, cached=cached)]


def compute(scheduler: Scheduler, prefill: Prefill) -> None:
    prefill.computed = len(prefill.ids)
    scheduler.prefilling.remove(prefill)


def test_siblings_wait_for_the_first_and_start_when_it_is_cached() -> None:
    scheduler = make()
    for ids in ([1, 2, 3], [1, 2, 3], [1, 2, 4], [9]):
        scheduler.submit(generation(ids))
    assert admit(scheduler) == [[1, 2, 3], [9]]
    assert admit(scheduler) == []
    compute(scheduler, scheduler.prefilling[0])

    def cached(ids: TokenIds) -> int:
        return {(1, 2, 3): 3, (1, 2, 4): 2}[tuple(ids.tolist())]

    assert admit(scheduler, cached=cached) == [[1, 2, 3], [1, 2, 4]]
    assert [prefill.computed for prefill in scheduler.prefilling[1:]] == [3, 2]


def test_nobody_waits_for_what_is_cached_already() -> None:
    scheduler = make()
    scheduler.submit(generation([1, 2, 3]))
    scheduler.submit(generation([1, 2, 4]))
    assert admit(scheduler, cached=lambda ids: 2) == [[1, 2, 3], [1, 2, 4]]


def test_nobody_waits_for_what_will_not_be_cached() -> None:
    scheduler = make(cache_tokens=2)
    scheduler.submit(generation([1, 2, 3]))
    scheduler.submit(generation([1, 2, 3]))
    assert admit(scheduler) == [[1, 2, 3], [1, 2, 3]]


def test_nobody_waits_for_one_that_was_abandoned() -> None:
    scheduler = make()
    first, second = generation([1, 2, 3]), generation([1, 2, 3])
    scheduler.submit(first)
    scheduler.submit(second)
    assert admit(scheduler) == [[1, 2, 3]]
    first.abandoned = True
    scheduler.drop_abandoned()
    assert admit(scheduler) == [[1, 2, 3]]
    assert [prefill.owner for prefill in scheduler.prefilling] == [second]


def test_no_more_run_than_allowed_but_scoring_needs_no_row() -> None:
    scheduler = make(max_running=3)
    for first in range(4):
        scheduler.submit(generation([first, 7]))
    scheduler.submit(Scoring(ScoreRequest(id="s", token_ids=token_array([30, 31, 32]), start=1)))
    assert admit(scheduler, decoding=1) == [[0, 7], [1, 7], [30, 31]]
    assert [prefill.ids.tolist() for prefill in scheduler.waiting] == [[2, 7], [3, 7]]


def test_a_step_has_no_more_tokens_than_allowed() -> None:
    scheduler = make(max_step_tokens=10, max_running=50)
    for first in range(3):
        scheduler.submit(generation([first, *range(50, 56)]))  # 7 tokens each
    assert len(admit(scheduler, decoding=2)) == 2  # the second starts with what is left
    chunks = scheduler.chunks(decoding=2)
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(0, 7), (0, 1)]
    chunks[0].prefill.computed, chunks[1].prefill.computed = 7, 1
    assert [(chunk.start, chunk.end) for chunk in scheduler.chunks(decoding=2)] == [(1, 7)]
    assert make(max_step_tokens=4, max_running=50).admit(decoding=4, cached=nothing) == []


def test_first_come_first_served() -> None:
    scheduler = make(max_step_tokens=6)
    for first in range(3):
        scheduler.submit(generation([first, 50, 51, 52]))
    assert admit(scheduler) == [[0, 50, 51, 52], [1, 50, 51, 52]]
    assert [chunk.prefill.ids[0] for chunk in scheduler.chunks(decoding=0)] == [0, 1]
