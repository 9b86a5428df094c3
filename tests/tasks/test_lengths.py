"""Prompts that leave no room for the completion are dropped loudly, never cut."""

from __future__ import annotations

import pytest

from turnpoint.errors import DataError
from turnpoint.tasks.lengths import check_lengths


def test_prompt_and_completion_must_fit_exactly() -> None:
    check = check_lengths([80, 81, 1, 500], context=100, max_new_tokens=20)
    assert (check.kept, check.dropped, check.limit, check.longest) == ((0, 2), 2, 80, 500)
    assert check.warning == (
        "2 of 4 tasks dropped: their prompts are longer than the 80 tokens that fit beside the completion "
        "(longest: 500)"
    )


def test_all_fitting_is_silent() -> None:
    check = check_lengths([1, 80], context=100, max_new_tokens=20)
    assert check.kept == (0, 1)
    assert check.warning is None


@pytest.mark.parametrize(
    ("lengths", "context", "message"),
    [
        (
            [81, 90],
            100,
            "leaves 80 of the 100 tokens of context for a prompt; the shortest of 2 prompts has 81",
        ),
        ([5], 20, "leaves 0 of the 20 tokens of context for a prompt; the shortest of 1 prompts has 5"),
        ([5], 10, "leaves -10 of the 10 tokens"),
        ([], 100, "no prompts"),
    ],
)
def test_no_fitting_prompt_is_an_error(lengths: list[int], context: int, message: str) -> None:
    with pytest.raises(DataError) as caught:
        check_lengths(lengths, context=context, max_new_tokens=20)
    assert message in str(caught.value)
    assert "sampling.max_new_tokens = 20" in str(caught.value)
