"""One worker and the requests it serves, as an event loop sees them.

    submit -> inbox -> [pump] one step of the worker at a time, in a thread -> futures

The event loop owns requests and futures; the worker owns everything computed. They meet between steps: the
pump hands finished work to whoever waits, lets them run once, so that what they ask for next is in time for
the next step, and starts it. Verifiers and environments run while the worker computes.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from turnpoint.engine.stats import EngineStats
from turnpoint.engine.worker import Request, Result, Stepped, Worker
from turnpoint.errors import EngineError


@dataclass(slots=True, eq=False)
class Ticket:
    """A request, its answer to come, and what it is called by the worker that has taken it."""

    request: Request
    answer: asyncio.Future[Result]
    prefix: bytes  # that it has in common with others
    tokens: int  # that it may take
    lane: Lane
    number: int = -1  # none while it lies in an inbox


class Lane:
    """Serves one event loop at a time, one after another as they come.

    `before_step` is called when the inbox is about to be emptied.
    """

    def __init__(self, worker: Worker, *, before_step: Callable[[], None]) -> None:
        self.stats = EngineStats()
        self.inbox: list[Ticket] = []  # what the next step takes in
        self.load = 0  # tokens of all that is not answered
        self.computing = threading.Lock()  # held by a step and by whoever changes the weights
        self._worker = worker
        self._before_step = before_step
        self._numbers = itertools.count()
        self._taken: dict[int, Ticket] = {}
        self._abandoned: list[int] = []  # what nobody waits for any more
        self._idle = True  # whether the worker has nothing left
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turnpoint-engine")
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def in_flight(self) -> int:
        """How many requests wait for an answer."""
        return len(self.inbox) + len(self._taken)

    def submit(self, ticket: Ticket) -> None:
        """Puts a ticket at the end of the inbox; raises EngineError naming the request when nobody serves."""
        if self._closed:
            raise EngineError(f"request {ticket.request.id!r}: the engine was closed")
        self._start_pump(ticket.request.id)
        ticket.lane = self
        self.inbox.append(ticket)
        self.load += ticket.tokens

    def withdraw(self, ticket: Ticket) -> None:
        """Forgets a ticket, answered or not."""
        if self._remove(ticket) and ticket.number >= 0:
            self._abandoned.append(ticket.number)

    async def ready(self) -> None:
        """Returns once the worker can serve; raises EngineError when it cannot."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._ready)

    def _ready(self) -> None:
        with self.computing:
            self._worker.ready()

    def renew(self, version: int) -> None:
        """Tells the worker that the weights are now those of `version`; `computing` is held."""
        self._worker.renew(version)
        self._abandoned, self._idle = [], True

    async def close(self) -> None:
        """Fails what is in flight and ends the worker; safe to call twice."""
        self._closed = True
        for ticket in [*self._taken.values(), *self.inbox]:
            self._fail(ticket, EngineError(f"request {ticket.request.id!r}: the engine was closed"))
        if self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])
        self._thread.shutdown()  # it does nothing any more, but for a moment it still knows the worker
        self._worker.close()

    def _remove(self, ticket: Ticket) -> bool:
        """Removes a ticket that is not answered yet; says whether it was there."""
        if self._taken.pop(ticket.number, None) is None:
            if ticket not in self.inbox:
                return False
            self.inbox.remove(ticket)
        self.load -= ticket.tokens
        return True

    def _start_pump(self, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        pump = self._pump
        if pump is not None and not pump.done() and not pump.get_loop().is_closed():
            if pump.get_loop() is not loop:
                raise EngineError(f"request {request_id!r}: the engine is serving another event loop")
            return
        self._pump = loop.create_task(self._run_steps())

    async def _run_steps(self) -> None:
        """Runs steps until nothing is left, and hands out what they finish."""
        loop = asyncio.get_running_loop()
        while self.inbox or not self._idle:
            self._before_step()
            arrived, abandoned = self._take()
            step = loop.run_in_executor(self._thread, self._step, arrived, abandoned)
            await asyncio.wait([step])
            if (error := step.exception()) is not None:
                self._idle = True
                self._fail_all(error)
            else:
                stepped = step.result()
                self.stats, self._idle = stepped.stats, stepped.idle
                for number, result in stepped.finished:
                    self._deliver(number, result)
            await asyncio.sleep(0)  # whoever got a result may ask for more before the next step

    def _take(self) -> tuple[list[tuple[int, Request]], list[int]]:
        tickets, self.inbox = self.inbox, []
        abandoned, self._abandoned = self._abandoned, []
        for ticket in tickets:
            ticket.number = next(self._numbers)
            self._taken[ticket.number] = ticket
        return [(ticket.number, ticket.request) for ticket in tickets], abandoned

    def _step(self, arrived: Sequence[tuple[int, Request]], abandoned: Sequence[int]) -> Stepped:
        with self.computing:
            return self._worker.step(arrived, abandoned)

    def _deliver(self, number: int, result: Result) -> None:
        ticket = self._taken.get(number)
        if ticket is not None and self._remove(ticket) and not ticket.answer.done():  # done: cancelled
            ticket.answer.set_result(result)

    def _fail_all(self, cause: BaseException) -> None:
        lost = [*self._taken.values(), *self.inbox]
        for ticket in lost:
            error = EngineError(
                f"request {ticket.request.id!r}: a step of the engine failed, and with it all {len(lost)} "
                f"requests in flight: {type(cause).__name__}: {cause}"
            )
            error.__cause__ = cause
            self._fail(ticket, error)

    def _fail(self, ticket: Ticket, error: EngineError) -> None:
        self._remove(ticket)
        if not ticket.answer.done():
            ticket.answer.set_exception(error)
