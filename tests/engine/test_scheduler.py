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


def scoring(ids: list[int], start: int = 1) -> Scoring:
    return Scoring(ScoreRequest(id="s", token_ids=token_array(ids), start=start))


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
    scheduler.leave(prefill)


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


def test_who_waited_for_another_comes_back_before_those_who_came_later() -> None:
    scheduler = make(max_running=3)
    for ids in ([1, 2, 3], [8, 9], [1, 2, 4], [8, 7], [1, 2, 5], [6]):
        scheduler.submit(generation(ids))
    assert admit(scheduler) == [[1, 2, 3], [8, 9], [6]]
    for prefill in list(scheduler.prefilling)[:2]:
        compute(scheduler, prefill)
    scheduler.submit(generation([7]))
    assert admit(scheduler, cached=lambda ids: len(ids) - 1) == [[1, 2, 4], [8, 7]]
    for prefill in list(scheduler.prefilling):
        compute(scheduler, prefill)
    assert admit(scheduler, cached=lambda ids: len(ids) - 1) == [[1, 2, 5], [7]]
    assert not scheduler.idle


def test_when_a_leader_is_abandoned_the_first_who_waited_leads() -> None:
    scheduler = make()
    owners = [generation([1, 2, last]) for last in (3, 4, 5, 6)]
    for owner in owners:
        scheduler.submit(owner)
    assert admit(scheduler) == [[1, 2, 3]]
    owners[0].abandoned = owners[1].abandoned = True
    scheduler.drop_abandoned()
    assert admit(scheduler) == [[1, 2, 5]]  # not 4, for whom nobody waits either
    compute(scheduler, scheduler.prefilling[0])
    assert admit(scheduler, cached=lambda ids: 2) == [[1, 2, 6]]
    compute(scheduler, scheduler.prefilling[0])
    assert scheduler.idle


def test_a_queue_of_abandoned_ones_is_emptied_without_a_start() -> None:
    scheduler = make()
    for first in range(5):
        scheduler.submit(owner := generation([first]))
        owner.abandoned = True
    assert admit(scheduler) == []
    assert scheduler.idle


def test_those_behind_a_scored_prefix_wait_for_the_prefix_and_not_for_the_scores() -> None:
    scheduler = make(max_step_tokens=6)
    scheduler.submit(scoring([1, 2, 3, 4, 5]))
    scheduler.submit(generation([1, 2, 3, 9]))
    assert admit(scheduler) == [[1, 2, 3, 4]]
    scheduler.prefilling[0].computed = 4
    assert admit(scheduler, cached=lambda ids: 3) == [[1, 2, 3, 9]]


def test_no_more_prefixes_are_held_than_a_step_scores() -> None:
    scheduler = make(max_step_tokens=10)
    for first in range(9):
        scheduler.submit(scoring([first, 50, 51, 52, 53], start=2))  # 3 tokens each
    whole: Callable[[TokenIds], int] = len
    assert len(admit(scheduler, cached=whole)) == 4  # the fourth is scored with what is left
    assert admit(scheduler, cached=whole) == []
    scheduler.leave(scheduler.prefilling[0])
    assert len(admit(scheduler, cached=whole)) == 1
    scheduler.submit(generation([60]))
    assert admit(scheduler, cached=whole) == [[60]]  # scores keep no generation waiting


def test_no_more_run_than_allowed_but_scoring_needs_no_row() -> None:
    scheduler = make(max_running=3)
    for first in range(4):
        scheduler.submit(generation([first, 7]))
    scheduler.submit(scoring([30, 31, 32]))
    assert admit(scheduler, decoding=1) == [[0, 7], [1, 7], [30, 31]]
    for prefill in list(scheduler.prefilling):
        compute(scheduler, prefill)
    assert admit(scheduler, decoding=2) == [[2, 7]]


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
