"""Decides what the next step runs: who starts, and which pieces of whose prefix.

    submit -> waiting -> prefilling -> (runner: decoding, or scored)

First come, first served, among generations, which need a free row, and among scorings, which need none.
With one exception: a sequence waits while another one is prefilling more of its prefix than the cache
holds. So the prompt of a group goes through the network once, however its members arrive. Whoever waits for
another is parked with it and comes back to its place in the queue when that prefix is cached, so that a step
looks at those it admits and at most `MOST_PARKED` more, however long the queue is.

A step never has more than `max_step_tokens` tokens; decoding sequences take theirs first, and since no more
than that many may run, prefixes always progress. As many tokens are scored in a step at most: scorings
beyond that wait, because each holds its whole prefix.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.engine.prefix_cache import common_prefix
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.engine.span import Span
from turnpoint.types import TokenIds

MOST_PARKED = 128  # in a step: enough to get past the rest of a group to the next one


class Prefill:
    """A sequence until its whole prefix has gone through the network."""

    def __init__(self, owner: Generation | Scoring) -> None:
        self.owner = owner
        self.ids = owner.prefix
        self.computed = 0  # leading tokens whose keys, values and hidden states are in `span`
        self.span: Span | None = None  # room for the whole prefix, from admission on

    @property
    def complete(self) -> bool:
        """Whether nothing of the prefix is left."""
        return self.computed == len(self.ids)

    @property
    def unscored(self) -> int:
        """How many tokens are still to be scored."""
        return self.owner.unscored if isinstance(self.owner, Scoring) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens `start` to `end` of a prefix, in one step."""

    prefill: Prefill
    start: int
    end: int


_Place: TypeAlias = tuple[int, Prefill]  # in the queue, by how many came before


class Scheduler:
    """Holds the sequences that do not decode yet; prefixes beyond `cache_tokens` are shared with nobody."""

    def __init__(self, *, max_running: int, max_step_tokens: int, cache_tokens: int) -> None:
        self._max_running = min(max_running, max_step_tokens)
        self._max_step_tokens = max_step_tokens
        self._cache_tokens = cache_tokens
        self._submitted = 0
        self.clear()

    def clear(self) -> None:
        """Removes everything."""
        self.prefilling: list[Prefill] = []
        self._generations: list[_Place] = []  # heaps: the first is who came first
        self._scorings: list[_Place] = []
        self._parked: dict[Prefill, list[_Place]] = {}  # by whom they wait for, who is prefilling

    @property
    def idle(self) -> bool:
        """Whether it holds no sequence."""
        return not self._generations and not self._scorings and not self.prefilling

    def submit(self, owner: Generation | Scoring) -> None:
        """Puts a sequence at the end of the queue."""
        self._enqueue((self._submitted, Prefill(owner)))
        self._submitted += 1

    def drop_abandoned(self) -> None:
        """Removes those prefilling that nobody waits for; who is abandoned in the queue never starts."""
        for prefill in [it for it in self.prefilling if it.owner.abandoned]:
            self.leave(prefill)

    def leave(self, prefill: Prefill) -> None:
        """Removes a sequence that was admitted."""
        self.prefilling.remove(prefill)
        self._unpark(prefill)

    def admit(self, *, decoding: int, cached: Callable[[TokenIds], int]) -> list[Prefill]:
        """Moves those that start now to `prefilling` and returns them, `computed` set to what is cached.

        `decoding` sequences run already; `cached` gives the length of the longest cached prefix.
        """
        for leader in [it for it in self._parked if it.complete]:
            self._unpark(leader)
        rows = self._max_running - decoding
        rows -= sum(isinstance(prefill.owner, Generation) for prefill in self.prefilling)
        tokens = self._max_step_tokens - decoding
        tokens -= sum(len(prefill.ids) - prefill.computed for prefill in self.prefilling)
        scores = self._max_step_tokens - sum(prefill.unscored for prefill in self.prefilling)
        leaders = [prefill for prefill in self.prefilling if self._leads(prefill)]
        admitted: list[Prefill] = []
        parked = 0
        while tokens > 0 and parked < MOST_PARKED:
            place = self._next(generations=rows > 0, scorings=scores > 0)
            if place is None:
                break
            _, prefill = place
            prefill.computed = cached(prefill.ids)
            if (leader := _ahead(prefill, leaders)) is not None:
                self._parked.setdefault(leader, []).append(place)
                parked += 1
                continue
            admitted.append(prefill)
            rows -= isinstance(prefill.owner, Generation)
            tokens -= len(prefill.ids) - prefill.computed
            scores -= prefill.unscored
            if self._leads(prefill):
                leaders.append(prefill)
        self.prefilling += admitted
        return admitted

    def _next(self, *, generations: bool, scorings: bool) -> _Place | None:
        """Takes the first out of the queues that are open, past those that nobody waits for any more."""
        while True:
            queues = [self._generations] if generations and self._generations else []
            queues += [self._scorings] if scorings and self._scorings else []
            if not queues:
                return None
            place = heapq.heappop(min(queues, key=lambda queue: queue[0]))
            if not place[1].owner.abandoned:
                return place

    def _enqueue(self, place: _Place) -> None:
        of_generations = isinstance(place[1].owner, Generation)
        heapq.heappush(self._generations if of_generations else self._scorings, place)

    def _unpark(self, leader: Prefill) -> None:
        """Sends those that wait for `leader` back to their places in the queue."""
        for place in self._parked.pop(leader, []):
            self._enqueue(place)

    def _leads(self, prefill: Prefill) -> bool:
        """Says whether others may wait for it: it has tokens to compute, and they will be cached."""
        return not prefill.complete and len(prefill.ids) <= self._cache_tokens

    def chunks(self, *, decoding: int) -> list[Chunk]:
        """Returns the pieces of prefixes that fit into the step beside `decoding` tokens, oldest first."""
        budget = self._max_step_tokens - decoding
        chunks: list[Chunk] = []
        for prefill in self.prefilling:
            take = min(budget, len(prefill.ids) - prefill.computed)
            if take:
                end = prefill.computed + take
                chunks.append(Chunk(prefill=prefill, start=prefill.computed, end=end))
                budget -= take
        return chunks


def _ahead(prefill: Prefill, leaders: Sequence[Prefill]) -> Prefill | None:
    """Returns the first leader that computes more of this prefix than is cached."""
    at, length = prefill.computed, len(prefill.ids)
    for leader in leaders:
        # nearly all differ right there, and a look at one token is cheap
        agrees = at < min(length, len(leader.ids)) and leader.ids[at] == prefill.ids[at]
        if agrees and common_prefix(prefill.ids[:at], leader.ids[:at]) == at:
            return leader
    return None
