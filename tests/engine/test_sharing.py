"""Which trunks are made: worked examples, and what must hold for any sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnpoint.engine.sharing import Path, Trunk, best_end, join_known, share


def path(*ids: int, leads: bool = True) -> Path:
    return Path(ids=np.array(ids, dtype=np.int32), spans=[] if leads else None)


def ends(path: Path) -> list[tuple[int, int]]:
    return [(trunk.start, end) for trunk, end in path.chain]


def anything(saved: int) -> bool:
    return saved > 0


def test_siblings_read_all_they_have_in_common() -> None:
    paths = [path(1, 2, 3, 4) for _ in range(3)]
    made = share(paths, pays=anything)
    assert [trunk.ids.tolist() for trunk, _ in made] == [[1, 2, 3, 4]]
    assert [ends(each) for each in paths] == [[(0, 4)]] * 3


def test_a_prompt_and_two_rollouts_that_fork() -> None:
    prompt, left, right = [0] * 8, [1] * 9, [2] * 10
    paths = [path(*prompt, *side) for side in (left, right) for _ in range(3)]
    paths += [path(*prompt, 3) for _ in range(6)]
    made = share(paths, pays=anything)
    assert sorted((trunk.start, trunk.depth, len(trunk)) for trunk, _ in made) == [
        (0, 0, 8),
        (8, 1, 1),
        (8, 1, 9),
        (8, 1, 10),
    ]
    assert [ends(each) for each in paths[:6]] == [[(0, 8), (8, 17)]] * 3 + [[(0, 8), (8, 18)]] * 3
    assert len({id(each.chain[0][0]) for each in paths}) == 1


def test_a_shorter_one_may_read_most_of_a_longer_trunk() -> None:
    paths = [path(*[0] * 8, *side) for side in ([1] * 6, [2] * 6) for _ in range(3)]
    made = share(paths, pays=anything)
    assert sorted((trunk.start, len(trunk)) for trunk, _ in made) == [(0, 14), (8, 6)]
    assert sorted(ends(each) for each in paths) == [[(0, 8), (8, 14)]] * 3 + [[(0, 14)]] * 3


def test_forks_at_different_points_read_one_trunk_up_to_different_points() -> None:
    paths = [path(*range(length)) for length in (20, 19, 18, 17)]
    made = share(paths, pays=lambda saved: saved > 10)
    assert [len(trunk) for trunk, _ in made] == [
        19
    ]  # 19 + 19 + 18 + 17 - 19 are saved; the 20th is read once
    assert [end for each in paths for _, end in each.chain] == [19, 19, 18, 17]


def test_the_best_end_saves_most() -> None:
    reaches = np.array([12, 12, 12, 32, 32])
    assert best_end(reaches, start=2) == (12, 40)  # five read 10, once
    assert best_end(np.array([3, 3, 3, 32, 32]), start=2) == (
        32,
        30,
    )  # two read 30; others would read too little
    assert best_end(np.array([2, 2]), start=2) == (2, 0)


def test_nothing_is_shared_when_it_does_not_pay() -> None:
    paths = [path(1, 2, 3) for _ in range(3)]
    assert share(paths, pays=lambda saved: saved > 6) == []
    assert [each.chain for each in paths] == [[]] * 3


def test_a_stranger_that_is_longest_does_not_prevent_it() -> None:
    paths = [path(1, *range(50, 90)), *(path(1, 2, 3, 4, 5) for _ in range(3))]
    share(paths, pays=lambda saved: saved > 5)
    assert [ends(each) for each in paths] == [[], [(0, 5)], [(0, 5)], [(0, 5)]]


def test_a_row_without_spans_joins_but_never_leads() -> None:
    row, newcomer = path(1, 2, 3, 9, 9, leads=False), path(1, 2, 3)
    (made,) = share([row, newcomer], pays=anything)
    assert made[0].ids.tolist() == [1, 2, 3]
    assert ends(row) == ends(newcomer) == [(0, 3)]
    assert share([path(1, leads=False), path(1, leads=False)], pays=anything) == []


def test_newcomers_read_the_trunks_there_are() -> None:
    ids = np.arange(8, dtype=np.int32)
    levels = [[Trunk(ids=ids[:4], start=0, depth=0)], [Trunk(ids=ids, start=4, depth=1)]]
    whole, short, other = path(*range(9)), path(0, 1, 2, 7), path(0, 7, 7)
    for each in (whole, short, other):
        join_known(each, levels)
    assert ends(whole) == [(0, 4), (4, 8)]
    assert ends(short) == [(0, 3)]  # most of a trunk, and nothing behind it
    assert ends(other) == []  # too little of it


sequences = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=10), st.booleans()), max_size=8
)


@given(sequences, st.integers(0, 6))
@settings(deadline=None, max_examples=200)
def test_chains_are_whole_and_true(given: list[tuple[list[int], bool]], least: int) -> None:
    paths = [path(*ids, leads=leads) for ids, leads in given]
    made = [trunk for trunk, _ in share(paths, pays=lambda saved: saved > least)]
    saved = 0
    for each in paths:
        at = 0
        for depth, (trunk, end) in enumerate(each.chain):
            assert (trunk.start, trunk.depth) == (at, depth)
            assert at < end <= min(len(trunk.ids), len(each.ids))
            np.testing.assert_array_equal(trunk.ids[:end], each.ids[:end])
            saved, at = saved + end - at, end
    assert saved - sum(len(trunk) for trunk in made) >= (least + 1) * len(made)
    for trunk in made:
        assert sum(trunk is other for each in paths for other, _ in each.chain) >= 2
