"""Stop strings across token borders, characters and windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnpoint.engine.stops import StopScanner, cut_at_stop
from turnpoint.types import TokenIds, token_array


def bytes_decode(ids: TokenIds) -> str:
    """Decodes one byte per token."""
    return bytes(ids.tolist()).decode("utf-8", errors="replace")


def stops_after(ids: list[int], strings: list[str]) -> int | None:
    """Returns after how many tokens the scanner stops."""
    scanner = StopScanner(bytes_decode, strings)
    for count in range(1, len(ids) + 1):
        if scanner.push(token_array(ids[:count])):
            return count
    return None


@given(
    st.text(alphabet="ab\u00e9\u4e16\U0001f600", max_size=80),
    st.sampled_from(["ab", "a", "\u00e9a", "\U0001f600\u4e16", "abab"]),
)
@settings(deadline=None, max_examples=300)
def test_stops_with_the_byte_that_completes_the_string(text: str, stop: str) -> None:
    at = text.find(stop)
    expected = None if at < 0 else len(text[: at + len(stop)].encode())
    assert stops_after(list(text.encode()), [stop]) == expected


@given(st.lists(st.integers(0, 255), max_size=60))
@settings(deadline=None)
def test_bytes_that_are_no_text_do_not_hide_a_later_stop(noise: list[int]) -> None:
    ids = [*noise, *b"<<</answer>"]
    found = stops_after(ids, ["</answer>"])
    assert found == len(ids)


def test_the_earliest_of_several_strings_cuts() -> None:
    assert stops_after(list(b"one two three"), ["three", "wo"]) == 7
    assert cut_at_stop("one two three", ["three", "wo"]) == "one t"
    assert cut_at_stop("one", ["x"]) == "one"


def test_tokens_without_text_do_not_hide_a_stop() -> None:
    def decode(ids: TokenIds) -> str:
        return "".join(chr(id) for id in ids.tolist() if id < 1000)  # others are special, and skipped

    scanner = StopScanner(decode, ["END"])
    ids = [5000] * 50 + [ord("E")] + [5000] * 50 + [ord("N")] + [5000] * 30 + [ord("D")]
    found = [scanner.push(token_array(ids[:count])) for count in range(1, len(ids) + 1)]
    assert found.index(True) == len(ids) - 1


def test_work_per_token_does_not_grow() -> None:
    decoded: list[int] = []

    def decode(ids: TokenIds) -> str:
        decoded.append(len(ids))
        return "x" * len(ids)

    scanner = StopScanner(decode, ["never"])
    ids = np.zeros(2000, dtype=np.int32)
    for count in range(1, 2001):
        assert not scanner.push(ids[:count])
    assert sum(decoded) < 30 * 2000
    assert max(decoded) < 30


@pytest.mark.parametrize("strings", [[], ["x"]])
def test_nothing_to_find(strings: list[str]) -> None:
    assert stops_after(list(b"abc"), strings) is None
