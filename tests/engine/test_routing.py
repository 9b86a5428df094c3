"""Which lane a request goes to, with lanes whose workers never run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np

from tests.engine.serve import ask, prompt
from turnpoint.engine.lane import Lane, Ticket
from turnpoint.engine.routing import Homes, even_out
from turnpoint.engine.stats import EngineStats
from turnpoint.engine.worker import Request, Stepped
from turnpoint.types import TokenIds


class Unmoved:
    """A worker that finishes nothing."""

    def ready(self) -> None:
        """It always is."""

    def step(self, arrived: Sequence[tuple[int, Request]], abandoned: Iterable[int]) -> Stepped:
        return Stepped(finished=[], idle=True, stats=EngineStats())

    def renew(self, version: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing ends."""


def placed(*loads: Sequence[tuple[TokenIds, int]]) -> list[list[int]]:
    """Returns the tokens asked for in each lane, once (prompt, tokens) of each were evened out."""

    async def main() -> list[list[int]]:
        lanes = [Lane(Unmoved(), before_step=lambda: None) for _ in loads]
        future = asyncio.get_running_loop().create_future()
        for lane, requests in zip(lanes, loads, strict=True):
            for ids, tokens in requests:
                lane.submit(
                    Ticket(ask(prompt_ids=ids), future, prefix=ids.tobytes(), tokens=tokens, lane=lane)
                )
        even_out(lanes)
        assert [lane.load for lane in lanes] == [sum(it.tokens for it in lane.inbox) for lane in lanes]
        assert all(ticket.lane is lane for lane in lanes for ticket in lane.inbox)
        found = [[ticket.tokens for ticket in lane.inbox] for lane in lanes]
        for lane in lanes:
            lane.inbox.clear()
            await lane.close()
        return found

    return asyncio.run(main())


def test_a_prompt_and_what_continues_it_share_a_home() -> None:
    homes, ids = Homes(), prompt(12)
    assert homes.find(ids.tobytes(), otherwise=1) == (ids.tobytes(), 1)
    fork = np.concatenate([ids, prompt(8, seed=2)])
    assert homes.find(fork.tobytes(), otherwise=0) == (ids.tobytes(), 1)
    other = prompt(12, seed=1)
    assert homes.find(other.tobytes(), otherwise=0) == (other.tobytes(), 0)
    homes.clear()
    assert homes.find(ids.tobytes(), otherwise=0) == (ids.tobytes(), 0)


def test_the_longest_known_prompt_decides() -> None:
    homes, ids = Homes(), prompt(12)
    homes.find(ids[:4].tobytes(), otherwise=1)
    assert homes.find(ids.tobytes(), otherwise=0)[1] == 1
    homes.clear()
    homes.find(ids[:8].tobytes(), otherwise=0)
    homes.find(ids[:4].tobytes(), otherwise=1)
    assert homes.find(ids.tobytes(), otherwise=2) == (ids[:8].tobytes(), 0)


def test_old_prompts_are_forgotten_one_by_one() -> None:
    homes = Homes(most=2)
    first, second, third = (prompt(5, seed=seed).tobytes() for seed in range(3))
    for place, ids in enumerate((first, second)):
        homes.find(ids, otherwise=place)
    homes.find(first, otherwise=9)  # used again
    homes.find(third, otherwise=2)
    assert [homes.find(ids, otherwise=9)[1] for ids in (first, third)] == [0, 2]
    assert homes.find(second, otherwise=9)[1] == 9


def test_one_group_is_divided() -> None:
    group = [(prompt(6), 100)] * 8
    assert placed(group, []) == [[100] * 4, [100] * 4]


def test_three_groups_in_two_lanes_divide_the_last_one() -> None:
    first, second, third = ([(prompt(6, seed=seed), 100)] * 4 for seed in range(3))
    assert placed([*first, *third], second) == [[100] * 6, [100] * 6]


def test_what_would_not_pay_for_another_prefill_stays() -> None:
    long = [(prompt(100), 20)] * 4
    assert placed(long, []) == [[20] * 4, []]
    assert placed([(prompt(6), 100)] * 2, [(prompt(6, seed=1), 100)]) == [[100, 100], [100]]


def test_many_lanes_each_get_a_share() -> None:
    assert placed([(prompt(6), 100)] * 8, [], [], []) == [[100] * 2, [100] * 2, [100] * 2, [100] * 2]
