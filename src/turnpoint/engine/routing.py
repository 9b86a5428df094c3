"""Which lane serves which request: those with a common prompt the same one, and all of them equally much.

A worker that has read a prompt has it cached, and so has everything that continues it: siblings, forks,
scores. Elsewhere it has to be read again, which pays when the other one would be idle for longer. The same
requests in the same order go the same way, as long as answers come in the same order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from turnpoint.engine.lane import Lane, Ticket

_KNOWN_PROMPTS = 4096
_ID_BYTES = 4  # of a token id in a prefix


class Homes:
    """Remembers where prompts were read, of the `most` that were used last."""

    def __init__(self, *, most: int = _KNOWN_PROMPTS) -> None:
        self._most = most
        self._places: OrderedDict[bytes, int] = OrderedDict()  # the latest last
        self._lengths: dict[int, int] = {}  # bytes of those prompts, and how many have as many

    def clear(self) -> None:
        """Forgets everything."""
        self._places.clear()
        self._lengths.clear()

    def find(self, ids: bytes, *, otherwise: int) -> tuple[bytes, int]:
        """Returns the longest known prompt that `ids` begin with, and its place.

        If there is none, `ids` are known from now on, at the place `otherwise`.
        """
        for length in sorted(self._lengths, reverse=True):
            if length <= len(ids) and (place := self._places.get(ids[:length])) is not None:
                self._places.move_to_end(ids[:length])
                return ids[:length], place
        self._places[ids] = otherwise
        self._lengths[len(ids)] = self._lengths.get(len(ids), 0) + 1
        if len(self._places) > self._most:
            oldest, _ = self._places.popitem(last=False)
            self._lengths[len(oldest)] -= 1
            if not self._lengths[len(oldest)]:
                del self._lengths[len(oldest)]
        return ids, otherwise


def even_out(lanes: Sequence[Lane]) -> None:
    """Moves what no worker has taken yet from the lane with most to do to the one with least, where it pays.

    What is moved are the last requests with one prefix, which then is read twice.
    """
    for _ in lanes[1:]:
        most, least = max(lanes, key=_load), min(lanes, key=_load)
        if not most.inbox or most.load - least.load <= 2 * len(most.inbox[-1].prefix) // _ID_BYTES:
            return
        prefix, moved = most.inbox[-1].prefix, list[Ticket]()
        while most.inbox and (last := most.inbox[-1]).prefix == prefix:
            if most.load - least.load < 2 * last.tokens:
                break
            most.withdraw(last)
            moved.append(last)
            least.load += last.tokens
        for ticket in reversed(moved):
            least.load -= ticket.tokens
            least.submit(ticket)


def _load(lane: Lane) -> int:
    return lane.load
