"""Whatever a model writes can be shown, in a known width, without anything hidden."""

import doctest
import importlib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from turnpoint.reports.text import Keep, cut, duration, number, percent, plural, visible, which_steps

ANY_TEXT = st.text(st.characters(codec=None) | st.sampled_from("\u65e5\u0301\u200d\U0001f469\ufe0f\x1b\n\t"))


@pytest.mark.parametrize("name", ["reports.text", "reports.comparison", "rollout.intervals"])
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"turnpoint.{name}"))
    assert (result.failed, result.attempted > 0) == (0, True)


def test_what_would_move_or_hide_is_written_out() -> None:
    assert visible("a\nb\\n") == "a\u21b5b\\n"
    assert visible("\x1b[2J\x00\x07\r\u202e\u200b\ufeff\ud800\U000e0041") == (
        "\\x1b[2J\\x00\\x07\\r\\u202e\\u200b\\ufeff\\ud800\\U000e0041"
    )
    assert visible("caf\u00e9 \u65e5\u672c \u2200x") == "caf\u00e9 \u65e5\u672c \u2200x"


@given(ANY_TEXT)
def test_visible_text_has_nothing_hidden_left(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(character)[0] == "C" for character in shown)
    assert visible(shown) == shown
    shown.encode()


@given(ANY_TEXT, st.integers(0, 30), st.sampled_from(["start", "end", "both"]))
def test_cut_never_passes_its_width(text: str, cells: int, keep: Keep) -> None:
    shown = cut(text, cells, keep)
    assert cell_len(shown) <= cells
    assert "\n" not in shown


def test_cut_keeps_what_fits_and_counts_wide_characters() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("\u65e5\u672c\u8a9e", 6) == "\u65e5\u672c\u8a9e"
    assert cut("\u65e5\u672c\u8a9e", 5) == "\u65e5..."
    assert cut("abcdef", 5, "both") == "a...f"
    assert cut("abcdef", 2) == ".."
    assert cut("abcdef", 0) == ""


def test_cut_does_not_read_a_long_text() -> None:
    assert cut("a" * 1_000_000 + "\ud800", 10, "end") == "...a\\ud800"
    assert cut("\u0301" * 1_000_000, 10).endswith("...")


def test_shares_that_are_not_quite_all_or_none() -> None:
    assert [percent(share) for share in (0.0, 0.004, 0.006, 0.994, 0.996, 1.0)] == [
        "0 %",
        "<1 %",
        "1 %",
        "99 %",
        ">99 %",
        "100 %",
    ]


def test_numbers_that_are_none() -> None:
    assert [number(value) for value in (float("nan"), float("inf"), 0.0, -3.0)] == ["nan", "inf", "0", "-3"]


def test_durations_round_into_the_next_unit() -> None:
    assert duration(59.94) == "59.9 s"
    assert duration(59.99) == "1 min 00 s"
    assert duration(3599.9) == "1 h 00 min"


def test_plurals() -> None:
    assert [plural(count, "batch", "batches") for count in (0, 1, 2)] == ["0 batches", "1 batch", "2 batches"]


def test_steps_are_named_and_not_too_many() -> None:
    assert which_steps({3, 1, 2}) == "steps 1 to 3"
    assert which_steps({4}) == "step 4"
    assert which_steps({1, 2, 5, 7, 8}) == "steps 1 to 2, 5, 7 to 8"
    assert which_steps(range(0, 1000, 2)) == "steps 0, 2, 4, 6, 8, 10, 12, 14, ..."
