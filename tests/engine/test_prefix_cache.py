"""The radix tree against a list of all cached prefixes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnpoint.engine.prefix_cache import PrefixCache, common_prefix
from turnpoint.engine.span import Span
from turnpoint.types import TokenIds, token_array


def span_of(ids: TokenIds) -> Span:
    """Returns a span whose numbers are the ids themselves, so that a mix-up shows."""
    row = torch.from_numpy(ids.astype(np.float32))
    return Span(keys=[row.reshape(1, -1, 1)], values=[-row.reshape(1, -1, 1)], hidden=row.reshape(-1, 1))


def insert(cache: PrefixCache, ids: TokenIds) -> None:
    cache.insert(ids, span_of(ids).part)


def read(cache: PrefixCache, ids: TokenIds) -> list[float]:
    spans = cache.read(ids)
    keys = [key for span in spans for key in numbers(span.keys[0])]
    values = [-value for span in spans for value in numbers(span.values[0])]
    hidden = [state for span in spans for state in numbers(span.hidden)]
    assert keys == values == hidden
    return hidden


def numbers(tensor: torch.Tensor) -> list[float]:
    return [float(number) for number in tensor.flatten()]


sequences = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(sequences, max_size=12), st.lists(sequences, max_size=6))
@settings(deadline=None, max_examples=150)
def test_finds_exactly_the_longest_cached_prefix(inserted: list[list[int]], asked: list[list[int]]) -> None:
    cache = PrefixCache(1000)
    prefixes: set[tuple[int, ...]] = set()
    for ids in inserted:
        insert(cache, token_array(ids))
        prefixes.update(tuple(ids[:length]) for length in range(1, len(ids) + 1))
        assert cache.tokens == len(prefixes)  # every token is stored once
    for ids in [*inserted, *asked]:
        longest = max(n for n in range(len(ids) + 1) if n == 0 or tuple(ids[:n]) in prefixes)
        assert cache.match(token_array(ids)) == longest
        assert read(cache, token_array(ids)) == ids[:longest]


@given(st.lists(st.tuples(st.booleans(), sequences), max_size=40), st.integers(1, 20))
@settings(deadline=None, max_examples=150)
def test_eviction_keeps_the_limit_and_never_lies(steps: list[tuple[bool, list[int]]], capacity: int) -> None:
    cache = PrefixCache(capacity)
    for inserts, ids in steps:
        if inserts:
            insert(cache, token_array(ids))
            if len(ids) <= capacity:
                assert cache.match(token_array(ids)) == len(ids)  # the newest is not what goes
        matched = cache.match(token_array(ids))
        assert read(cache, token_array(ids)) == ids[:matched]
        assert cache.tokens <= capacity


def test_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(6)
    insert(cache, token_array([1, 2, 3, 4]))
    insert(cache, token_array([1, 2, 5]))  # 5 tokens: [1, 2], [3, 4], [5]
    cache.read(token_array([1, 2, 3, 4]))
    insert(cache, token_array([7, 8]))  # 7 tokens: [5] is the oldest leaf
    assert cache.match(token_array([1, 2, 5])) == 2
    assert cache.match(token_array([1, 2, 3, 4])) == 4
    assert cache.tokens == 6


def test_a_node_owns_no_more_than_its_tokens() -> None:
    cache = PrefixCache(100)
    insert(cache, token_array(range(50)))
    insert(cache, token_array([*range(10), 99]))
    for span in [*cache.read(token_array(range(50))), *cache.read(token_array([*range(10), 99]))]:
        storage = span.hidden.untyped_storage().nbytes() // 4
        assert storage == len(span)


def test_what_is_cached_does_not_follow_its_source() -> None:
    cache = PrefixCache(100)
    ids = token_array([1, 2, 3])
    span = span_of(ids)
    cache.insert(ids, span.part)
    span.hidden.zero_()
    assert cache.read(ids)[0].hidden.flatten().tolist() == [1, 2, 3]


def test_a_sequence_beyond_the_capacity_is_left_out() -> None:
    cache = PrefixCache(3)
    insert(cache, token_array([1, 2]))
    insert(cache, token_array([1, 2, 3, 4]))
    assert (cache.tokens, cache.match(token_array([1, 2, 3, 4]))) == (2, 2)


def test_clear_forgets() -> None:
    cache = PrefixCache(10)
    insert(cache, token_array([1, 2]))
    cache.clear()
    assert (cache.tokens, cache.match(token_array([1, 2]))) == (0, 0)


def test_common_prefix() -> None:
    def common(left: list[int], right: list[int]) -> int:
        return common_prefix(np.array(left, dtype=np.int32), np.array(right, dtype=np.int32))

    assert [common([], [1]), common([1, 2], [1, 2, 3]), common([1, 2], [1, 3]), common([2], [1])] == [
        0,
        2,
        1,
        0,
    ]
