"""Where a teacher and its policy differ: in the template's tokens, in other special ones, or in what is said.

A teacher with another template finds the policy's end of turn all but impossible, which is a floor that no
training takes away and that looks like a large KL. Tokens of the three kinds are therefore counted apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from turnpoint.losses.laws import LOWEST_LOGPROB
from turnpoint.metrics import Mean, Metric, Sum
from turnpoint.teachers.kinds import TokenKinds
from turnpoint.teachers.scoring import ScoringTeacher, Silence
from turnpoint.teachers.teaching import Teaching, Word
from turnpoint.types import Floats, Group, TokenIds

CONCENTRATION = "teacher/concentration"
SILENT = "teacher/silent"
_FEW = 0.01  # of the tokens, whose share in all |d| is told

Gaps = npt.NDArray[np.float64]


def gaps_of(teacher: Floats, student: Floats) -> Gaps:
    """Returns d = log p_teacher - log p_student of [n] tokens, nats, as `sampled_token_signal` does."""
    theirs, mine = (np.maximum(values.astype(np.float64), LOWEST_LOGPROB) for values in (teacher, student))
    return theirs - mine


def split_of(groups: Sequence[Group], words: Sequence[Word], kinds: TokenKinds) -> dict[str, Mean]:
    """Returns the mean of -d over tokens of each of `KINDS`, nats, against the law that sampled them."""
    said = list(_said(groups, words))
    ids = np.concatenate([np.zeros(0, np.int32), *[tokens for tokens, _ in said]])
    gaps = np.concatenate([np.zeros(0), *[gap for _, gap in said]])
    return {kind: Mean(-math.fsum(gaps[mask]), int(mask.sum())) for kind, mask in kinds.masks(ids).items()}


def _said(groups: Sequence[Group], words: Sequence[Word]) -> Iterator[tuple[TokenIds, Gaps]]:
    for group, word in zip(groups, words, strict=True):
        for segment, targets in word.items():
            node = group.tree.segments[segment]
            assert node.logprobs is not None, "a POLICY segment has log-probabilities"
            yield node.token_ids, gaps_of(targets.logprobs, node.logprobs)


def detail_metrics(
    groups: Sequence[Group], words: Sequence[Word], teaching: Teaching
) -> Mapping[str, Metric]:
    """Returns where the difference of `teacher_metrics` lies.

    teacher/kl_content, kl_template, kl_special: see `split_of`; with several teachers, those of each, too.
    teacher/concentration: the share that the largest hundredth of |d| has in all of it, 0.01 if all were
    equal. teacher/silent/REASON: valid rollouts without a word, by `Silence`.
    """
    found: dict[str, Metric] = {
        f"teacher/kl_{kind}": mean for kind, mean in split_of(groups, words, teaching.kinds).items()
    }
    if len(teaching.routing.names) > 1:
        for name in teaching.routing.names:
            own = [at for at, group in enumerate(groups) if teaching.routing.of(group.task) == name]
            split = split_of([groups[at] for at in own], [words[at] for at in own], teaching.kinds)
            found |= {f"teacher/{name}/kl_{kind}": mean for kind, mean in split.items()}
    sizes = np.sort(np.abs(np.concatenate([np.zeros(0), *[gap for _, gap in _said(groups, words)]])))
    few = math.ceil(_FEW * len(sizes))
    found[CONCENTRATION] = Mean(float(sizes[len(sizes) - few :].sum()), float(sizes.sum()))
    reasons = silences(groups, words, teaching)
    return {**found, **{f"{SILENT}/{reason}": Sum(float(count)) for reason, count in reasons.items()}}


def silences(groups: Sequence[Group], words: Sequence[Word], teaching: Teaching) -> Counter[Silence]:
    """Returns how many valid rollouts have no word, by the reason of their teacher, if it gives one."""
    reasons: Counter[Silence] = Counter()
    for group, word in zip(groups, words, strict=True):
        teacher = teaching.teachers.get(teaching.routing.of(group.task))
        if not isinstance(teacher, ScoringTeacher):
            continue  # made of others, or gone since it spoke
        for index, member in enumerate(group.members):
            if member.verdict.valid and not any(segment in word for segment in member.segments):
                reasons.update([why] if (why := teacher.silence(group, index)) else [])
    return reasons
