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
