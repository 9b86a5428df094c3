"""Figures of what teachers said about a step's rollouts, against the law that sampled them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from turnpoint.metrics import Mean, Metric, Quantile, Sum
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.teaching import Word
from turnpoint.types import Floats, Group

KL = "teacher/kl"


def teacher_metrics(groups: Sequence[Group], words: Sequence[Word], routing: Routing) -> Mapping[str, Metric]:
    """Returns what teachers and the sampling law differ by, over tokens with a teacher's word.

    teacher/kl: mean of -d, nats a token, which estimates KL(policy || teacher) at the visited prefixes.
    teacher/gap_p50, teacher/gap_p99: quantiles of |d|. teacher/tokens: how many have a word.
    teacher/impossible: those that the teacher gives no probability at all; they are in no mean.
    teacher/silent: valid rollouts without a word. With several teachers, teacher/NAME/kl and
    teacher/NAME/share, its share of those tokens.
    """
    gaps: dict[str, list[Floats]] = {name: [] for name in routing.names}
    silent = 0
    for group, word in zip(groups, words, strict=True):
        for index, member in enumerate(group.members):
            own = [segment for segment in group.generated(index) if segment.id in word]
            silent += member.verdict.valid and not own
            for segment in own:
                assert segment.logprobs is not None, "a POLICY segment has log-probabilities"
                gaps[routing.of(group.task)].append(word[segment.id].logprobs - segment.logprobs)
    by_name = {name: _joined(parts) for name, parts in gaps.items()}
    everything = _joined(list(by_name.values()))
    finite = everything[np.isfinite(everything)]
    found: dict[str, Metric] = {
        KL: _mean(everything),
        "teacher/gap_p50": Quantile(0.5, tuple(np.abs(finite).tolist())),
        "teacher/gap_p99": Quantile(0.99, tuple(np.abs(finite).tolist())),
        "teacher/tokens": Sum(float(len(everything))),
        "teacher/impossible": Sum(float(len(everything) - len(finite))),
        "teacher/silent": Sum(float(silent)),
    }
    if len(by_name) > 1:
        for name, gap in by_name.items():
            found[f"teacher/{name}/kl"] = _mean(gap)
            found[f"teacher/{name}/share"] = Mean(float(len(gap)), float(len(everything)))
    return found


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _mean(gaps: Floats) -> Mean:
    finite = gaps[np.isfinite(gaps)].astype(np.float64)
    return Mean(float(-finite.sum()), len(finite))
