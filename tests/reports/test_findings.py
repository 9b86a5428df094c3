"""Each rule: when it speaks, what it says, when it is silent."""

import pytest

from tests.reports.samples import make_group
from turnpoint.metrics import Max, Mean
from turnpoint.reports.findings import (
    FindingLimits,
    correction,
    drift,
    invalid,
    mismatch,
    ratio,
    shortage,
    signal,
    step_findings,
    truncation,
)
from turnpoint.types import Group

LIMITS = FindingLimits(max_new_tokens=256, clip_low=0.2, clip_high=0.28, mismatch_tolerance=0.1)


def said(groups: list[Group]) -> str | None:
    found = signal(groups)
    return found and found.text


def test_no_signal_when_every_reward_is_zero() -> None:
    assert said([make_group([0.0, 0.0])] * 4) == (
        "no learning signal: every group has equal rewards (all 0.0): too hard for this policy, or answers "
        "in a form the verifier does not find"
    )


def test_no_signal_when_every_reward_is_one() -> None:
    assert said([make_group([1.0, 1.0])] * 4) == (
        "no learning signal: every group has equal rewards (all 1.0): nothing left to learn on these problems"
    )


def test_no_signal_from_groups_of_different_levels() -> None:
    groups = [*[make_group([0.0, 0.0])] * 3, make_group([1.0, 1.0])]
    assert said(groups) == "no learning signal: every group has equal rewards (3 all 0.0, 1 all 1.0)"


def test_no_signal_without_any_valid_reward() -> None:
    assert said([make_group(["broken", "broken"])]) == "no learning signal: no rollout has a valid reward"


def test_little_signal_from_three_quarters_on() -> None:
    flat, good = make_group([0.0, 0.0]), make_group([0.0, 1.0])
    assert said([flat, flat, good]) is None
    assert said([flat, flat, flat, good]) == (
        "little learning signal: 3 of 4 groups have equal rewards (3 all 0.0)"
    )


def test_many_levels_are_not_all_listed() -> None:
    groups = [make_group([level, level]) for level in (0.1, 0.2, 0.3, 0.4)]
    assert said(groups) == (
        "no learning signal: every group has equal rewards (1 all 0.1, 1 all 0.2, 1 all 0.3, ...)"
    )


def test_parts_that_cancel_are_named() -> None:
    group = make_group([0.0, 0.0], parts=[{"right": 1.0, "short": -1.0}, {"right": -1.0, "short": 1.0}])
    assert (said([group]) or "").endswith("; yet these parts of them differ: right, short")


def test_truncation_says_how_long_the_finished_ones_are() -> None:
    group = make_group([0.0] * 5, lengths=[256, 256, 256, 30, 40], truncated=[0, 1, 2])
    found = truncation([group], max_new_tokens=256)
    assert found is not None
    assert found.text == (
        "60 % of rollouts hit the limit of 256 tokens; finished ones have median length 35: raise "
        "sampling.max_new_tokens"
    )


def test_truncation_of_all() -> None:
    found = truncation([make_group([0.0, 0.0], truncated=[0, 1])], max_new_tokens=2)
    assert found is not None
    assert found.text.startswith("100 % of rollouts hit the limit of 2 tokens and none finished: raise ")


def test_truncation_below_a_fifth_is_ordinary() -> None:
    assert truncation([make_group([0.0] * 6, truncated=[0])], max_new_tokens=9) is None
    assert truncation([make_group([0.0] * 5, truncated=[0])], max_new_tokens=9) is not None


def test_invalid_rollouts_with_their_reasons() -> None:
    group = make_group([0.0, 1.0, *["timed out"] * 3, "NaN", "NaN", "a", "b", "\x1b[2J" * 40])
    found = invalid([group])
    assert found is not None
    assert found.text == (
        "80 % of rollouts invalid: timed out (3), NaN (2), a (1), 2 other reasons; not trained on"
    )
    assert invalid([make_group([0.0])]) is None


def test_reasons_are_made_visible_and_cut() -> None:
    found = invalid([make_group(["\x1b[2J" * 40])])
    assert found is not None
    assert "\x1b" not in found.text
    assert len(found.text) < 120


@pytest.mark.parametrize(("largest", "inside"), [(0.0031, True), (0.1999, True), (0.2, False), (3.0, False)])
def test_on_policy_means_inside_the_narrower_clip(largest: float, inside: bool) -> None:
    found = ratio(largest, clip_low=0.2, clip_high=0.28)
    assert found.warning is not inside
    assert found.text.startswith("on-policy: " if inside else "on-policy up to rounding: ")


def test_the_ratio_is_said() -> None:
    text = ratio(0.0031, clip_low=0.2, clip_high=0.28).text
    assert text == "on-policy: largest |ratio - 1| = 0.0031; the clip (0.2/0.28) does not act"


@pytest.mark.parametrize(("gap", "word"), [(0.1, "agree"), (0.11, "disagree"), (float("nan"), "disagree")])
def test_engine_and_trainer(gap: float, word: str) -> None:
    found = mismatch(gap, tolerance=0.1)
    assert found.text.startswith(f"engine and trainer {word}: ")
    assert found.warning is (word == "disagree")


def test_checks_are_told_on_the_first_step_and_later_only_when_they_fail() -> None:
    groups = [make_group([0.0, 1.0])]
    good = {"mismatch": Mean.of([0.01]), "ratio_deviation": Max(0.01)}
    bad = {"mismatch": Mean.of([0.5]), "ratio_deviation": Max(0.9)}

    def rules(metrics: dict[str, Mean | Max], *, first: bool) -> list[str]:
        return [found.rule for found in step_findings(groups, dict(metrics), limits=LIMITS, first=first)]

    assert rules({**good}, first=True) == ["mismatch", "ratio"]
    assert rules({**good}, first=False) == []
    assert rules({**bad}, first=False) == ["mismatch", "ratio"]
    assert rules({}, first=True) == []


def test_all_rules_of_a_bad_step_in_order() -> None:
    groups = [make_group([0.0, 0.0, "timed out"], truncated=[0, 1, 2])]
    found = step_findings(groups, {}, limits=LIMITS, first=False)
    assert [(finding.rule, finding.warning) for finding in found] == [
        ("signal", True),
        ("truncation", True),
        ("invalid", True),
    ]
    assert all("\n" not in finding.text for finding in found)


def test_several_updates_are_judged_by_what_the_clip_takes() -> None:
    mild = drift(0.3, clipped=0.05, updates=4)
    assert (
        mild.text
        == "4 updates per batch: largest |ratio - 1| = 0.3, the clip took the gradient of 5 % of tokens"
    )
    assert not mild.warning
    wild = drift(9.0, clipped=0.4, updates=4)
    assert wild.warning
    assert wild.text.endswith("fewer updates per batch or a lower learning rate would waste less")
    assert not drift(0.1, clipped=None, updates=2).warning


def test_with_several_updates_the_clip_is_not_said_to_be_idle() -> None:
    limits = FindingLimits(
        max_new_tokens=256, clip_low=0.2, clip_high=0.28, mismatch_tolerance=0.1, updates=2
    )
    groups = [make_group([0.0, 1.0])]
    metrics = {"ratio_deviation": Max(0.01), "clip_fraction": Mean(0.0, 5.0)}
    (found,) = step_findings(groups, metrics, limits=limits, first=True)
    assert found.text.startswith("2 updates per batch")


def test_uneven_importance_weights_are_a_warning() -> None:
    assert correction(None) is None
    assert correction(0.5) is None
    found = correction(0.2)
    assert found is not None
    assert found.warning
    assert "an effective 20 % of the tokens" in found.text


def test_a_refill_that_falls_short_is_a_warning() -> None:
    assert shortage(None) is None
    assert shortage(0.0) is None
    found = shortage(1.0)
    assert found is not None
    assert found.text.startswith("the step is 1 group short")
