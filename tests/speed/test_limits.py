"""What cannot be measured is refused with what can; the largest setting that fits does fit, one more not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from turnpoint.diagnosis.cost import LinearCost, TrainingCost
from turnpoint.diagnosis.memory import NOTHING_SAVED, Needs
from turnpoint.diagnosis.rows import Shape
from turnpoint.errors import UserError
from turnpoint.speed.learning import afforded
from turnpoint.speed.limits import check_context, check_rollouts, fitting_rows

SHAPE = Shape(prompts=4, samples=64, prompt_tokens=100, new_tokens=50)
NEEDS = Needs(
    resident=1000,
    trained=0,
    references=0,
    shape=SHAPE,
    evaluation_tokens=0,
    evaluation_rollouts=0,
    cache_tokens=10**6,
    max_running=10**6,
    micro_batch_tokens=4096,
    token_state=10,
    vocab_size=100,
    saved=NOTHING_SAVED,
    head_chunk_tokens=16,
    head_gradient=0,
    slack=1.0,
)
COST = TrainingCost(
    seconds=LinearCost(fixed=0.0, per_token=1.0, per_score=0.0), saved_bytes=NOTHING_SAVED, tokens=64
)


@pytest.mark.parametrize(
    ("prompt", "new", "out"),
    [
        (90, 20, "--new-tokens 10 is the most"),
        (200, 20, "--prompt-tokens 80 is the most"),
        (200, 200, "--prompt-tokens 50 --new-tokens 50 fit"),
    ],
)
def test_beyond_the_context(prompt: int, new: int, out: str) -> None:
    with pytest.raises(UserError, match=f"{prompt + new} tokens, beyond the 100 .*{out}"):
        check_context(replace(SHAPE, prompt_tokens=prompt, new_tokens=new), 100)


def test_the_whole_context_is_not_beyond_it() -> None:
    check_context(replace(SHAPE, prompt_tokens=60, new_tokens=40), 100)


def test_fewer_samples_that_fit_are_named() -> None:
    capacity = NEEDS.total // 2
    with pytest.raises(UserError) as refused:
        check_rollouts(NEEDS, capacity=capacity)
    said = re.search(r"--samples (\d+) would fit", str(refused.value))
    assert said is not None
    fits, more = (replace(NEEDS, shape=replace(SHAPE, samples=int(said[1]) + extra)) for extra in (0, 1))
    check_rollouts(fits, capacity=capacity)
    with pytest.raises(UserError):
        check_rollouts(more, capacity=capacity)


def test_fewer_prompts_and_nothing_that_fits() -> None:
    few = replace(NEEDS, shape=replace(SHAPE, prompts=2, samples=1))
    with pytest.raises(UserError, match="--prompts 2 --samples 1 would fit"):
        check_rollouts(NEEDS, capacity=few.total)
    with pytest.raises(UserError, match="not even one of them fits"):
        check_rollouts(NEEDS, capacity=1001)


def test_rows_of_training_shrink_to_what_fits() -> None:
    heavy = replace(NEEDS, saved=LinearCost(fixed=0.0, per_token=1000.0, per_score=0.0))
    assert fitting_rows(heavy, capacity=heavy.total) == 4096
    rows = fitting_rows(heavy, capacity=heavy.total - 10**6)
    assert rows is not None
    assert replace(heavy, micro_batch_tokens=rows).total <= heavy.total - 10**6
    assert 150 <= rows < 4096
    assert fitting_rows(heavy, capacity=1000) is None


@pytest.mark.parametrize(
    ("share", "prompts", "samples"), [(2.0, 4, 64), (0.6, 2, 64), (0.125, 1, 32), (1e-9, 1, 1)]
)
def test_as_much_of_a_step_as_time_allows(share: float, prompts: int, samples: int) -> None:
    """A second a token; rows that hold a group each."""
    group = 100 + 64 * 49
    found = afforded(SHAPE, COST, row_tokens=3300, seconds=share * 4 * group)
    assert (found.prompts, found.samples) == (prompts, samples)
