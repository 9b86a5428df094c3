"""Whether the verifier accepts every gold answer of the dataset, and tells a wrong one from it."""

from __future__ import annotations

from collections.abc import Sequence

from turnpoint.assemble import check_gold
from turnpoint.config import FunctionVerifierConfig, VerifierConfig
from turnpoint.diagnosis.checks import Check, failed, ok, warning
from turnpoint.errors import DataError
from turnpoint.protocols import Verifier
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import number, plural
from turnpoint.rollout.concurrency import all_of
from turnpoint.tasks import Dataset
from turnpoint.types import Task

_COMPARED = 32  # problems whose gold answer is compared with a wrong one


async def check_gold_answers(
    parts: Sequence[Dataset], verifier: Verifier, terminal: Terminal
) -> tuple[list[Dataset], Check]:
    """Returns the usable tasks of each part, and what the verifier says of all gold answers.

    A part of which nothing is usable comes back whole, so that other checks can go on. The self-check of a
    verifier also asks that a wrong answer fails, where the verifier can know one.
    """
    usable: list[Dataset] = []
    notes: list[str] = []
    refused = ""
    for part in parts:
        try:
            kept, left_out = await check_gold(part, verifier, terminal)
        except DataError as error:
            kept, left_out, refused = part, [], str(error)
        usable.append(kept)
        notes += left_out
    total = sum(len(part.tasks) for part in parts)
    if refused:
        return usable, failed("gold answers", refused)
    if notes:
        return usable, warning("gold answers", "; ".join(notes))
    return usable, ok("gold answers", f"all {number(total)} pass the verifier's self-check")


async def check_wrong_answers(tasks: Sequence[Task], verifier: Verifier, config: VerifierConfig) -> Check:
    """Whether a function of the user's gives gold answers more than those of other problems.

    Other verifiers know a wrong answer themselves: it is part of their self-check.
    """
    if not isinstance(config, FunctionVerifierConfig):
        return ok("wrong answers", "refused, as part of the self-check of every gold answer")
    pairs = [
        (task, other.answer)
        for task, other in zip(tasks, [*tasks[1:], *tasks[:1]], strict=True)
        if other.answer != task.answer
    ][:_COMPARED]
    if not pairs:
        return ok("wrong answers", "not tried: all gold answers are the same")
    right = await all_of(verifier.verify(task, task.answer) for task, _ in pairs)
    wrong = await all_of(verifier.verify(task, answer) for task, answer in pairs)
    told = [_earned(gold.reward) > _earned(other.reward) for gold, other in zip(right, wrong, strict=True)]
    text = f"another problem's gold answer earns less in {sum(told)} of {plural(len(told), 'problem')}"
    if not any(told):
        return warning("wrong answers", f"{text}: your function does not look at task.answer")
    return ok("wrong answers", text) if all(told) else warning("wrong answers", text)


def _earned(reward: float | None) -> float:
    return float("-inf") if reward is None else reward
