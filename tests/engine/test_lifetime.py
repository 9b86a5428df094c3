"""Requests that end otherwise than by an answer, and the event loops an engine serves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.engine.bent import Bent
from tests.engine.serve import ask, asks, generate, make_engine, prompt
from turnpoint.errors import EngineError
from turnpoint.types import TokenIds

# --- cancelling and failing ---------------------------------------------------------------------


def test_cancelling_frees_the_row_and_draws_nothing_more() -> None:
    bent = Bent()
    engine = make_engine(bent.decoder, max_running=1)

    async def main() -> None:
        long = asyncio.create_task(engine.generate(ask("long", max_tokens=200)))
        await asyncio.to_thread(bent.entered.wait, 20)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        await engine.generate(ask("next", max_tokens=3))  # there is one row, and it is free

    asyncio.run(main())
    assert engine.stats.sampled < 50


def test_a_cancelled_waiting_request_is_never_computed() -> None:
    bent = Bent()
    engine = make_engine(bent.decoder, max_running=1)
    bent.gate.clear()

    async def main() -> None:
        first = asyncio.create_task(engine.generate(ask("first", prompt(9), max_tokens=3)))
        second = asyncio.create_task(engine.generate(ask("second", prompt(9, seed=1))))
        await asyncio.to_thread(bent.entered.wait, 20)
        second.cancel()
        bent.gate.set()
        await first

    asyncio.run(main())
    assert (engine.stats.prefilled, engine.stats.sampled) == (9, 3)


def test_a_failed_step_fails_what_is_in_flight_and_nothing_after() -> None:
    bent = Bent()
    engine = make_engine(bent.decoder)
    expected = generate(engine, *asks(3, prompt(9)))
    bent.broken = True

    async def main() -> list[Any]:
        tasks = [engine.generate(request) for request in asks(3, prompt(9))]
        return await asyncio.gather(*tasks, return_exceptions=True)

    for index, error in enumerate(asyncio.run(main())):
        assert isinstance(error, EngineError)
        assert str(error) == (
            f"request 'r{index}': a step of the engine failed, and with it all 3 requests in flight: "
            f"RuntimeError: out of memory"
        )
        assert isinstance(error.__cause__, RuntimeError)
    bent.broken = False
    again = generate(engine, *asks(3, prompt(9)))
    assert [c.token_ids.tolist() for c in again] == [c.token_ids.tolist() for c in expected]
    assert {completion.cached_tokens for completion in again} == {0, 9}  # nothing half computed was kept


def test_a_broken_tokenizer_is_reported() -> None:
    def broken(ids: TokenIds) -> str:
        raise ValueError("no such id")

    with pytest.raises(EngineError, match="ValueError: no such id"):
        generate(make_engine(decode=broken), ask())


def test_close_fails_what_is_in_flight_and_what_comes() -> None:
    engine = make_engine()

    async def main() -> None:
        task = asyncio.create_task(engine.generate(ask(max_tokens=200)))
        await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(EngineError, match="request 'r': the engine was closed"):
            await task
        with pytest.raises(EngineError, match="request 'late': the engine was closed"):
            await engine.generate(ask("late"))
        await engine.close()

    asyncio.run(main())


# --- loops --------------------------------------------------------------------------------------


def test_it_serves_one_loop_after_another() -> None:
    engine = make_engine()
    first = generate(engine, *asks(3, prompt(9)))
    second = generate(engine, *asks(3, prompt(9)))
    assert [c.token_ids.tolist() for c in first] == [c.token_ids.tolist() for c in second]


def test_a_loop_that_ends_in_the_middle_of_a_step_leaves_it_usable() -> None:
    bent = Bent()
    engine = make_engine(bent.decoder)
    bent.gate.clear()

    async def leave() -> None:
        task = asyncio.create_task(engine.generate(ask("left", max_tokens=200)))
        await asyncio.to_thread(bent.entered.wait, 20)
        del task  # the loop cancels what is still running when it closes

    asyncio.run(leave())
    threading.Timer(0.05, bent.gate.set).start()
    assert len(generate(engine, ask("next", max_tokens=3))[0].token_ids) == 3
    assert engine.stats.sampled < 10


def test_two_loops_at_once_are_refused() -> None:
    bent = Bent()
    engine = make_engine(bent.decoder)
    bent.gate.clear()

    async def main() -> None:
        task = asyncio.create_task(engine.generate(ask()))
        await asyncio.to_thread(bent.entered.wait, 20)
        with pytest.raises(EngineError, match="request 'other': the engine is serving another event loop"):
            await asyncio.to_thread(generate, engine, ask("other"))
        bent.gate.set()
        await task

    asyncio.run(main())


def test_the_loop_is_free_while_a_step_computes() -> None:
    bent = Bent()
    engine = make_engine(bent.decoder)
    bent.gate.clear()

    async def main() -> None:
        task = asyncio.create_task(engine.generate(ask(max_tokens=1)))
        await asyncio.to_thread(bent.entered.wait, 20)
        await asyncio.sleep(0)  # a verifier's turn
        assert not task.done()
        bent.gate.set()
        await task

    asyncio.run(main())


def test_what_a_waiter_asks_next_is_in_time_for_the_next_step() -> None:
    engine = make_engine()

    async def chain() -> int:
        for turn in range(5):
            await engine.generate(ask(f"turn {turn}", max_tokens=1))
        return engine.stats.steps

    async def main() -> int:
        long = asyncio.create_task(engine.generate(ask("long", max_tokens=50)))
        steps = await chain()
        await long
        return steps

    assert asyncio.run(main()) == 5
