"""Figures of what teachers said about a step's rollouts, against the law that sampled them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from turnpoint.metrics import Mean, Metric, Sum
from turnpoint.teachers.routing import Routing
from turnpoint.teachers.signal import signal_metrics
from turnpoint.teachers.teaching import Word
from turnpoint.types import Floats, Group

KL = "teacher/kl"
TOKENS = "teacher/tokens"
_NAMES = {
    KL: "signal_kl",
    "teacher/gap_p50": "signal_size_median",
    "teacher/gap_p99": "signal_size_p99",
    "teacher/clipped": "signal_clipped",
    "teacher/floored": "signal_floored",
}


def teacher_metrics(
    groups: Sequence[Group], words: Sequence[Word], routing: Routing, *, clip: float | None
) -> Mapping[str, Metric]:
    """Returns what teachers and the sampling law differ by, over tokens with a teacher's word.

    teacher/kl, gap_p50, gap_p99, clipped, floored: see `signal_metrics`, whose names they shorten.
    teacher/tokens: how many have a word. teacher/silent: valid rollouts without one. With several teachers,
    teacher/NAME/kl and teacher/NAME/share, its share of those tokens.
    """
    said: dict[str, list[tuple[Floats, Floats]]] = {name: [] for name in routing.names}
    silent = 0
    for group, word in zip(groups, words, strict=True):
        for index, member in enumerate(group.members):
            own = [segment for segment in group.generated(index) if segment.id in word]
            silent += member.verdict.valid and not own
            for segment in own:
                assert segment.logprobs is not None, "a POLICY segment has log-probabilities"
                said[routing.of(group.task)].append((segment.logprobs, word[segment.id].logprobs))
    everything = [pair for pairs in said.values() for pair in pairs]
    figures, tokens = _figures(everything, clip), sum(len(student) for student, _ in everything)
    found: dict[str, Metric] = {
        **{name: figures[long] for name, long in _NAMES.items()},
        TOKENS: Sum(float(tokens)),
        "teacher/silent": Sum(float(silent)),
    }
    if len(said) > 1:
        for name, pairs in said.items():
            found[f"teacher/{name}/kl"] = _figures(pairs, clip)["signal_kl"]
            found[f"teacher/{name}/share"] = Mean(float(sum(len(it) for it, _ in pairs)), float(tokens))
    return found


def _figures(pairs: Sequence[tuple[Floats, Floats]], clip: float | None) -> Mapping[str, Metric]:
    student, teacher = (
        torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *[pair[side] for pair in pairs]]))
        for side in (0, 1)
    )
    return signal_metrics(student_logprobs=student, teacher_logprobs=teacher, clip=clip)
