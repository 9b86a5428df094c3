"""What part of a step's teaching is each teacher's: by the recipe, not by how long its answers are.

    w_i  =  share_i / measured_i,    scaled so that sum_i w_i measured_i = 1        (Open-MOPD, 2608.19098)

measured_i is teacher i's part of the trained tokens with a teacher's word in the step. w_i multiplies the
teacher's coef, not the token's weight: a weight would also scale the task's own loss and a KL term of these
tokens, and denominators count tokens. So the sum of coefs over the step's tokens stays what it is without
shares, where all coefs are one. A teacher without a token in a step leaves its share to the others, in
proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from turnpoint.metrics import Mean, Metrics
from turnpoint.teachers.routing import Routing
from turnpoint.types import Group, SegmentCredit

Credited = tuple[Group, Sequence[SegmentCredit]]


def share_weights(shares: Mapping[str, float], tokens: Mapping[str, int]) -> dict[str, float]:
    """Returns w_i of each teacher that has tokens.

    >>> tokens = {"sums": 8000, "code": 1000, "chat": 1000}
    >>> found = share_weights(dict.fromkeys(tokens, 1 / 3), tokens)
    >>> [round(weight, 4) for weight in found.values()]
    [0.4167, 3.3333, 3.3333]
    """
    present = {name: count for name, count in tokens.items() if count}
    total, given = sum(present.values()), sum(shares[name] for name in present)
    return {name: shares[name] / given * total / count for name, count in present.items()}


def balanced(
    credited: Sequence[Credited], routing: Routing, shares: Mapping[str, float]
) -> tuple[list[Credited], Metrics]:
    """Returns credits whose teachers' coefs are multiplied by w_i, and `teacher/NAME/weight`: w_i.

    The metric of a teacher without a token is of nothing.
    """
    tokens: Counter[str] = Counter()
    for group, credits in credited:
        spoken = [credit.weights for credit in credits if credit.teacher is not None]
        tokens[routing.of(group.task)] += sum(int(np.count_nonzero(weights)) for weights in spoken)
    found = share_weights(shares, tokens)
    weighted: list[Credited] = [
        (group, [_times(credit, found.get(routing.of(group.task), 1.0)) for credit in credits])
        for group, credits in credited
    ]
    return weighted, {
        f"teacher/{name}/weight": Mean(found[name], 1) if name in found else Mean(0.0, 0) for name in shares
    }


def _times(credit: SegmentCredit, weight: float) -> SegmentCredit:
    teacher = credit.teacher
    if teacher is None:
        return credit
    return replace(credit, teacher=replace(teacher, coef=weight * teacher.coef))
