"""Waiting for many things at once without leaving any behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results in order; runs all at the same time.

    When one raises, or the caller is cancelled, the rest are cancelled and awaited before the error goes
    on, so that nothing outlives this call. Unlike `asyncio.TaskGroup` it raises the first error itself.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Together:
    """Lets `parties` go on when all have come, in the order of their places, whoever came last."""

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, place: int) -> None:
        """Returns when all are here; each of 0..parties-1 waits once."""
        loop = asyncio.get_running_loop()
        mine = self._waiting[place] = loop.create_future()
        if len(self._waiting) == self._parties:
            loop.call_soon(self._release)  # not here: the last to come would go first
        await mine

    def _release(self) -> None:
        for place in sorted(self._waiting):
            if not self._waiting[place].done():  # it was cancelled
                self._waiting[place].set_result(None)
