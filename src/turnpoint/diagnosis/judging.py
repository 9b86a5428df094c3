"""Whether the verifier accepts every gold answer of the dataset, and tells a wrong one from it.

A function of the user's may want more than a bare answer ("# 3" where gold is "3"), and what it should say of
any answer is not known here. So of functions only what was measured is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from turnpoint.assemble import check_gold
from turnpoint.config import FunctionVerifierConfig, NoVerifierConfig, VerifierConfig
from turnpoint.diagnosis.checks import Check, failed, ok, warning
from turnpoint.errors import DataError
from turnpoint.protocols import Verifier
from turnpoint.reports.findings import invalid_text
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import number, plural
from turnpoint.rollout.concurrency import all_of
from turnpoint.tasks import Dataset
from turnpoint.types import Task, Verdict
from turnpoint.verifiers.sandbox import Isolation

_COMPARED = 32  # problems whose gold answer is compared with a wrong one
_NOTHING = "nothing can be said about right and wrong ones"


async def check_gold_answers(
    parts: Sequence[Dataset], verifier: Verifier, config: VerifierConfig, terminal: Terminal
) -> tuple[list[Dataset], Check]:
    """Returns the usable tasks of each part, and what the verifier says of all gold answers.

    A part of which nothing is usable comes back whole, so that other checks can go on. The self-check of a
    verifier also asks that a wrong answer fails, where the verifier can know one: a function cannot.
    """
    if isinstance(config, NoVerifierConfig):
        return list(parts), ok("gold answers", "not looked at: nobody judges")
    usable: list[Dataset] = []
    notes: list[str] = []
    refused: list[str] = []
    rewards: list[float] = []
    for part in parts:
        try:
            kept, left_out, earned = await check_gold(part, verifier, terminal)
        except DataError as error:
            kept, left_out, earned = part, [], []
            refused.append(str(error))
        usable.append(kept)
        notes += left_out
        rewards += earned
    function = isinstance(config, FunctionVerifierConfig)
    if function and (low := _low(rewards)):
        notes.append(low)
    total = sum(len(part.tasks) for part in parts)
    if refused:
        return usable, failed("gold answers", "; ".join(refused))
    if notes:
        return usable, warning("gold answers", "; ".join(notes))
    what = "earn more than 0 from your function" if function else "pass the verifier's self-check"
    return usable, ok("gold answers", f"all {number(total)} {what}")


def check_isolation(level: Isolation, *, described: str) -> Check:
    """What stands between the policy's programs and this machine; a warning below full."""
    return ok("isolation", described) if level is Isolation.FULL else warning("isolation", described)


def _low(rewards: Sequence[float]) -> str:
    """Says how many gold answers earn nothing; "" for none."""
    low = [reward for reward in rewards if reward <= 0]
    if not low:
        return ""
    text = f"gold answers alone earn {'0 or less' if min(low) < 0 else '0'} in {len(low)} of {len(rewards)}"
    some = " there" if len(low) < len(rewards) else ""
    return f"{text}: the function wants more than the bare answer{some}, or never rewards above 0{some}"


async def check_wrong_answers(tasks: Sequence[Task], verifier: Verifier, config: VerifierConfig) -> Check:
    """Whether a function of the user's gives gold answers more than those of other problems.

    Other verifiers know a wrong answer themselves: it is part of their self-check.
    """
    if isinstance(config, NoVerifierConfig):
        return ok("wrong answers", "not tried: nobody judges")
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
    return _compared(list(zip(right, wrong, strict=True)))


def _compared(pairs: Sequence[tuple[Verdict, Verdict]]) -> Check:
    """What verdicts of right and of wrong answers, problem by problem, say of a function."""
    judged = [
        (gold.reward, other.reward)
        for gold, other in pairs
        if gold.reward is not None and other.reward is not None
    ]
    reasons = Counter(verdict.reason for pair in pairs for verdict in pair if not verdict.valid)
    invalid = invalid_text(reasons, total=2 * len(pairs), noun="answers")
    notes = [invalid] if invalid else []
    if not judged:
        return warning("wrong answers", "; ".join([*notes, _NOTHING]))
    less = sum(gold > other for gold, other in judged)
    nothing = sum(gold <= 0 for gold, _ in judged)
    text = f"another problem's gold answer earns less in {less} of {plural(len(judged), 'problem')}"
    if less == len(pairs):
        return ok("wrong answers", text)
    if less == 0 and nothing == len(judged):
        text += f", but the right one earns nothing above 0 either: {_NOTHING}"
    elif all(gold == other > 0 for gold, other in judged):
        text += ", both earn the same, above 0: your function does not look at task.answer"
    return warning("wrong answers", "; ".join([text, *notes]))
