"""Decides what the next step runs: who starts, and which pieces of whose prefix.

    submit -> waiting -> prefilling -> (runner: decoding, or scored)

First come, first served, with one exception: a sequence waits while another one is prefilling more of its
prefix than the cache holds. So the prompt of a group goes through the network once, however its members
arrive. A step never has more than `max_step_tokens` tokens; decoding sequences take theirs first, and
since no more than that many may run, prefixes always progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnpoint.engine.prefix_cache import common_prefix
from turnpoint.engine.sequence import Generation, Scoring
from turnpoint.engine.span import Span
from turnpoint.types import TokenIds


class Prefill:
    """A sequence until its whole prefix has gone through the network."""

    def __init__(self, owner: Generation | Scoring) -> None:
        self.owner = owner
        self.ids = owner.prefix
        self.computed = 0  # leading tokens whose keys, values and hidden states are in `span`
        self.span: Span | None = None  # room for the whole prefix, from admission on
        self.waits_for: Prefill | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing of the prefix is left."""
        return self.computed == len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens `start` to `end` of a prefix, in one step."""

    prefill: Prefill
    start: int
    end: int


class Scheduler:
    """Holds the sequences that do not decode yet; prefixes beyond `cache_tokens` are shared with nobody."""

    def __init__(self, *, max_running: int, max_step_tokens: int, cache_tokens: int) -> None:
        self.waiting: list[Prefill] = []
        self.prefilling: list[Prefill] = []
        self._max_running = min(max_running, max_step_tokens)
        self._max_step_tokens = max_step_tokens
        self._cache_tokens = cache_tokens

    @property
    def idle(self) -> bool:
        """Whether it holds no sequence."""
        return not self.waiting and not self.prefilling

    def submit(self, owner: Generation | Scoring) -> None:
        """Puts a sequence at the end of the queue."""
        self.waiting.append(Prefill(owner))

    def drop_abandoned(self) -> None:
        """Removes the sequences nobody waits for."""
        self.waiting = [prefill for prefill in self.waiting if not prefill.owner.abandoned]
        self.prefilling = [prefill for prefill in self.prefilling if not prefill.owner.abandoned]

    def clear(self) -> None:
        """Removes everything."""
        self.waiting, self.prefilling = [], []

    def admit(self, *, decoding: int, cached: Callable[[TokenIds], int]) -> list[Prefill]:
        """Moves those that start now to `prefilling` and returns them, `computed` set to what is cached.

        `decoding` sequences run already; `cached` gives the length of the longest cached prefix.
        """
        room = self._max_running - decoding
        room -= sum(isinstance(prefill.owner, Generation) for prefill in self.prefilling)
        budget = self._max_step_tokens - decoding
        budget -= sum(len(prefill.ids) - prefill.computed for prefill in self.prefilling)
        leaders = [prefill for prefill in self.prefilling if self._leads(prefill)]
        still_waiting: list[Prefill] = []
        admitted: list[Prefill] = []
        for prefill in self.waiting:
            needs_row = isinstance(prefill.owner, Generation)
            if budget <= 0 or (needs_row and not room) or self._must_wait(prefill, leaders, cached):
                still_waiting.append(prefill)
                continue
            admitted.append(prefill)
            room -= needs_row
            budget -= len(prefill.ids) - prefill.computed
            if self._leads(prefill):
                leaders.append(prefill)
        self.prefilling += admitted
        self.waiting = still_waiting
        return admitted

    def _leads(self, prefill: Prefill) -> bool:
        """Says whether others may wait for it: it has tokens to compute, and they will be cached."""
        return not prefill.complete and len(prefill.ids) <= self._cache_tokens

    def _must_wait(
        self, prefill: Prefill, leaders: Sequence[Prefill], cached: Callable[[TokenIds], int]
    ) -> bool:
        """Says whether a leader is computing more of this prefix than is cached; if not, sets `computed`."""
        if prefill.waits_for in leaders:
            return True
        prefill.computed = cached(prefill.ids)
        for leader in leaders:
            if common_prefix(prefill.ids, leader.ids) > prefill.computed:
                prefill.waits_for = leader
                return True
        return False

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
