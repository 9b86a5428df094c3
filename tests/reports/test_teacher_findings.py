"""What is said about teachers: when each rule speaks, in which words, and when it is silent."""

from __future__ import annotations

import pytest

from tests.reports.samples import make_group
from turnpoint.metrics import Mean, Metric, Quantile, Sum
from turnpoint.reports.finding import Finding
from turnpoint.reports.findings import ratio
from turnpoint.reports.teacher_findings import (
    agreement,
    distance,
    inflation,
    teacher_findings,
    template,
)

GROUPS = [make_group([0.0, 1.0])] * 2  # 4 valid rollouts


def step(**figures: Metric) -> dict[str, Metric]:
    """The figures of a step whose teacher speaks of 1,000 tokens, with some of them changed."""
    usual: dict[str, Metric] = {
        "kl": Mean(300.0, 1000),
        "gap_p50": Quantile(0.5, (0.1,)),
        "gap_p99": Quantile(0.99, (3.0,)),
        "clipped": Mean(0, 1000),
        "concentration": Mean(0.2, 1),
        "tokens": Sum(1000.0),
        "silent": Sum(0.0),
        "kl_content": Mean(280.0, 980),
        "kl_template": Mean(20.0, 20),
    }
    return {f"teacher/{name.replace('__', '/')}": metric for name, metric in (usual | figures).items()}


def said(*, first: bool = False, **figures: Metric) -> list[Finding]:
    return list(teacher_findings(GROUPS, step(**figures), first=first))


def test_nothing_is_said_without_teachers_and_of_a_usual_step() -> None:
    assert list(teacher_findings(GROUPS, {"loss": Mean(1, 1)}, first=True)) == []
    assert said() == []


def test_the_first_step_says_where_the_kl_lies() -> None:
    (found,) = said(first=True)
    assert found.text == (
        "KL of the policy to the teachers at the start: 0.3 nats per token; content 0.286 (980 tokens), "
        "ends of turns 1 (20 tokens)"
    )
    assert not found.warning


def test_another_template_is_told_from_another_opinion() -> None:
    (found,) = said(first=True, kl_content=Mean(10.0, 980), kl_template=Mean(200.0, 20))
    assert found.warning
    assert (
        "95 % of it is on tokens that are no content: the teacher disagrees about the template" in found.text
    )
    little = template({"content": Mean(0.1, 980), "template": Mean(1.0, 20)})
    assert not little.warning


def test_silence_is_said_with_its_reasons() -> None:
    assert said(silent=Sum(1.0), silent__untold=Sum(1.0)) == []
    (found,) = said(silent=Sum(2.0), silent__untold=Sum(1.0), silent__too_long=Sum(1.0))
    assert found.text == (
        "2 of 4 valid rollouts have no teacher's word: no other rollout of the group earned its reward (1), "
        "beyond the teacher's context (1)"
    )
    (none,) = said(silent=Sum(4.0), silent__untold=Sum(4.0), tokens=Sum(0.0), kl=Mean(0, 0))
    assert none.text.startswith("no rollout has a teacher's word: no other rollout")


def test_a_teacher_that_says_what_the_policy_says_teaches_nothing() -> None:
    assert agreement(0.002) is None
    (found,) = said(gap_p99=Quantile(0.99, (2e-6,)))
    assert "teachers say what the policy says: |d| is at most 2e-06 nats on 99 % of tokens" in found.text


def test_a_clip_that_cuts_much_and_a_few_tokens_that_decide() -> None:
    assert said(clipped=Mean(200, 1000)) == []
    (found,) = said(clipped=Mean(300, 1000), concentration=Mean(0.9, 1))
    assert "distill.loss.clip changes d of 30 % of tokens, whose median |d| is 0.1 nats" in found.text
    (found,) = said(concentration=Mean(0.6, 1))
    assert "one token in a hundred has 60 % of all |d|, up to 3 nats and more" in found.text
    assert not found.warning


def run(kl: list[float], truncated: list[float]) -> list[dict[str, float]]:
    pairs = zip(kl, truncated, strict=True)
    return [{"teacher/kl": distance, "truncated": share} for distance, share in pairs]


def test_a_kl_that_does_not_fall_is_a_warning() -> None:
    falling = [1.0 - 0.05 * index for index in range(12)]
    found = distance(run(falling, [0.0] * 12), least=10)
    assert found is not None
    assert (found.warning, found.text) == (
        False,
        "KL to the teachers went from 0.95 to 0.5 nats per token",
    )
    level = distance(run([0.5, 0.51, 0.49] * 4, [0.0] * 12), least=10)
    assert level is not None
    assert level.warning
    assert "did not fall beyond the spread" in level.text
    assert distance(run(falling[:9], [0.0] * 9), least=10) is None
    there = distance(run([0.001, 0.002] * 6, [0.0] * 12), least=10)
    assert there is not None
    assert not there.warning, "there was nowhere to fall to"


@pytest.mark.parametrize(
    ("ends", "falls", "speaks"), [(0.5, True, True), (0.05, True, False), (0.5, False, False)]
)
def test_truncation_that_grows_while_the_kl_falls(ends: float, falls: bool, speaks: bool) -> None:
    kl = [1.0 - 0.05 * index if falls else 1.0 for index in range(12)]
    found = inflation(run(kl, [ends * index / 11 for index in range(12)]), least=10)
    assert (found is not None) == speaks
    if found is not None:
        assert "truncated rollouts went from 5 % to 45 % while the KL to the teachers fell" in found.text


def test_importance_weights_without_a_clip_are_named_for_what_they_are() -> None:
    found = ratio(1e-6, clipped=0.0, clip_low=1.0, clip_high=1.0)
    assert found.text == (
        "on-policy: largest |ratio - 1| = 1e-06; the cap of 2 on importance weights cuts nothing"
    )
