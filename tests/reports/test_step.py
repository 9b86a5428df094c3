"""The record of a step."""

from dataclasses import replace

import pytest

from tests.reports.samples import make_group
from turnpoint.metrics import Max, Mean, Metrics, Sum
from turnpoint.reports.findings import FindingLimits
from turnpoint.reports.step import StepReport, make_step_report
from turnpoint.reports.step_line import legend, step_fields, wrap_fields
from turnpoint.types import Account, Group

LIMITS = FindingLimits(max_new_tokens=256, clip_low=0.2, clip_high=0.28, mismatch_tolerance=0.1)


def report_of(
    groups: list[Group], metrics: Metrics | None = None, *, seconds: dict[str, float] | None = None
) -> StepReport:
    return make_step_report(
        step=3,
        groups=groups,
        trainer_metrics=metrics or {},
        seconds=seconds or {},
        wall_seconds=10.0,
        limits=LIMITS,
        first=False,
    )


def test_time_nobody_accounts_for_is_shown() -> None:
    assert report_of([], seconds={"rollouts": 6.0, "training": 3.4}).phases() == {
        "rollouts": 6.0,
        "training": 3.4,
        "other": pytest.approx(0.6),
    }


def test_within_five_per_cent_nothing_is_missing() -> None:
    assert report_of([], seconds={"rollouts": 6.0, "training": 3.5}).phases() == {
        "rollouts": 6.0,
        "training": 3.5,
    }


def test_a_metric_has_one_source() -> None:
    with pytest.raises(ValueError, match=r"step 3: metrics \['reward'\] come from"):
        report_of([make_group([0.0, 1.0])], {"reward": Mean.of([1.0])})


def test_metrics_and_findings_of_both_sides() -> None:
    report = report_of(
        [make_group([0.0, 0.0])], {"ratio_deviation": Max(0.9), "clip_fraction": Mean(1.0, 2.0)}
    )
    assert report.metrics["reward"].value == 0.0
    assert report.metrics["ratio_deviation"].value == 0.9
    assert [finding.rule for finding in report.findings] == ["signal", "ratio"]


def test_the_line_of_a_step() -> None:
    slow = Account(seconds={"slowest_verify": 2.13})
    groups = [
        make_group([1.0, 0.0], lengths=[10, 20], name="sum/1"),
        make_group([0.0, "x"], truncated=[0], name="sum/2", account=slow),
    ]
    trainer: Metrics = {
        "entropy": Mean.of([0.8]),
        "grad_norm": Max(0.4123),
        "learning_rate": Max(1e-6),
        "loss": Mean.of([0.0]),
    }
    report = report_of(groups, trainer, seconds={"rollouts": 6.0, "training": 4.0})
    assert step_fields(report, steps=20) == [
        "step  3/20",
        "reward  0.333",
        "solved  33 %",
        "signal 1/2",
        "length    9",
        "truncated  25 %",
        "invalid 25 %",
        "entropy 0.800",
        "grad norm   0.412",
        "lr 1.00e-06",
        "10.0 s (rollouts 6.0, training 4.0)",
        "slowest verification 2.1 s (sum/2)",
    ]


def test_what_was_not_measured_has_no_field() -> None:
    assert step_fields(report_of([]), steps=None) == ["step 3", "10.0 s (other 10.0)"]
    fields = step_fields(report_of([make_group(["x"])]), steps=None)
    assert not any(field.startswith(("reward", "solved")) for field in fields)


def test_fields_are_never_broken_inside() -> None:
    fields = ["step 1/2", "reward 0.1", "length 5"]
    assert wrap_fields(fields, width=None, indent=2) == ["step 1/2  reward 0.1  length 5"]
    assert wrap_fields(fields, width=20, indent=2) == ["step 1/2  reward 0.1", "  length 5"]
    assert wrap_fields(fields, width=1, indent=2) == ["step 1/2", "  reward 0.1", "  length 5"]


@pytest.mark.parametrize(
    ("beside", "rewards_teach", "words"),
    [
        ((), True, "rewards differ, the only ones that teach; length: mean tokens"),
        (
            ("the teacher",),
            True,
            "rewards differ, which teach beside the teacher; length: mean tokens; kl to",
        ),
        (("the teacher",), False, "rewards differ, which teach nothing here: the teacher does; length"),
    ],
)
def test_the_legend_says_what_teaches(beside: tuple[str, ...], rewards_teach: bool, words: str) -> None:
    report = make_step_report(
        step=1,
        groups=[make_group([0.0, 1.0])],
        trainer_metrics={"teacher/kl": Mean(0.0, 0.0), "teacher/tokens": Sum(0.0)} if beside else {},
        seconds={},
        wall_seconds=1.0,
        limits=replace(LIMITS, beside=beside, rewards_teach=rewards_teach),
        first=False,
    )
    assert words in legend(report)
