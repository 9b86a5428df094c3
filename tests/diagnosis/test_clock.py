"""The time of a run, against sums made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from turnpoint.config import EvaluationConfig, RunConfig, parse_recipe
from turnpoint.diagnosis.clock import Clock, Seconds, check_time, evaluations
from turnpoint.diagnosis.cost import LinearCost
from turnpoint.diagnosis.rows import Shape
from turnpoint.diagnosis.sampling import Speed, affordable

SHAPE = Shape(prompts=2, samples=4, prompt_tokens=10, new_tokens=5)
CLOCK = Clock(
    speed=Speed(prefill=1.0, prompt_tokens=20, decode_step=0.1, rollouts=8, rollouts_at_once=8),
    training=LinearCost(fixed=0.0, per_token=0.01, per_score=0.0),
    optimizer=0.5,
    publish=0.25,
)
TOKENS = 2 * (10 + 4 * 5) - 8  # of a step, in one row; the last token of a rollout is no input


def config_of(**sections: Any) -> RunConfig:
    return parse_recipe(
        {
            "tasks": {"kind": "jsonl", "path": "rows.jsonl"},
            "rollout": {"prompts_per_step": 2, "samples_per_prompt": 4},
            "training": {"steps": 10},
            **sections,
        }
    )


def run(config: RunConfig, *, packed: float = 1.0, decode_steps: float = 5.0, draws: float = 1.0) -> Seconds:
    return CLOCK.run(config, SHAPE, packed=packed, decode_steps=decode_steps, draws=draws)


def test_steps_add_up() -> None:
    found = run(config_of())
    assert found.rollouts == pytest.approx(10 * (1.0 + 5 * 0.1))
    assert found.training == pytest.approx(10 * (TOKENS * 0.01 + 0.5 + 0.25))
    assert found.evaluation == 0.0
    assert found.total == found.rollouts + found.training


def test_groups_without_signal_are_not_trained_on() -> None:
    assert run(config_of(), packed=0.5).training == pytest.approx(10 * (TOKENS * 0.005 + 0.75))


def test_groups_that_are_drawn_again_cost_rollouts_alone() -> None:
    assert run(config_of(), draws=3.0).rollouts == 3 * run(config_of()).rollouts
    assert run(config_of(), draws=3.0).training == run(config_of()).training


def test_epochs_repeat_forward_and_backward_and_every_update_costs() -> None:
    twice = run(config_of(training={"steps": 10, "epochs": 2, "mini_batches": 2}))
    forward = TOKENS * 0.01 / 3  # log-probabilities of the first epoch, which the later ones compare with
    assert twice.training == pytest.approx(10 * (2 * TOKENS * 0.01 + forward + 4 * 0.5 + 0.25))


def test_a_reference_costs_a_forward_pass() -> None:
    plain, pulled = run(config_of()), run(config_of(kl={"coef": 0.1}))
    assert pulled.training - plain.training == pytest.approx(10 * TOKENS * 0.01 / 3)


def test_small_micro_batches_are_more_rows() -> None:
    fixed = Clock(
        speed=CLOCK.speed,
        training=LinearCost(fixed=1.0, per_token=0.0, per_score=0.0),
        optimizer=0.0,
        publish=0.0,
    )
    config = config_of(training={"steps": 1, "micro_batch_tokens": 30})
    found = fixed.run(config, SHAPE, packed=1.0, decode_steps=1.0, draws=1.0)
    assert found.training == pytest.approx(2.0)  # one group in each


def test_evaluations_are_counted_and_scaled_by_their_rollouts() -> None:
    assert evaluations(EvaluationConfig(), 10) == 2
    assert evaluations(EvaluationConfig(every=5), 10) == 3  # before, after 5, after 10
    assert evaluations(EvaluationConfig(every=3), 10) == 5  # before, after 3, 6, 9, 10
    found = run(config_of(evaluation={"tasks": 16, "samples": 3}))
    assert found.evaluation == pytest.approx(2 * 16 * 4 / 8 * 1.5)


def test_what_is_said() -> None:
    expected = Seconds(rollouts=540.0, training=300.0, evaluation=0.0)
    longest = Seconds(rollouts=1140.0, training=360.0, evaluation=30.0)
    text = check_time(expected, longest, steps=100, measured="speeds").text
    assert text.startswith("about 14 min 00 s (rollouts 9 min 00 s, training 5 min 00 s); up to 25 min 30 s")
    assert "evaluations 30.0 s" in text
    assert check_time(None, longest, steps=100, measured="speeds").text.startswith("up to about 25 min 30 s")


def test_the_bound_is_never_below_the_estimate() -> None:
    expected = Seconds(rollouts=60.0, training=20.0, evaluation=30.0)
    longest = Seconds(rollouts=10.0, training=25.0, evaluation=5.0)
    text = check_time(expected, longest, steps=1, measured="speeds").text
    assert "up to 1 min 55 s (rollouts 1 min 00 s, training 25.0 s, evaluations 30.0 s)" in text


def test_time_for_rollouts_goes_to_whole_groups_first() -> None:
    def given(max_new_tokens: int, seconds: float) -> tuple[int, int]:
        return affordable(prompts=8, max_new_tokens=max_new_tokens, decode_step=0.1, seconds=seconds)

    assert given(100, 20) == (8, 100)
    assert given(1000, 25) == (2, 1000)
    assert given(10_000, 20) == (1, 1600)
    assert given(10_000, 0) == (1, 16)
    assert given(4, 0) == (1, 4)
