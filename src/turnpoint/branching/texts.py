"""What the policy is told about a root, and what it is asked: the record, the reflection, the steps.

Our own words under the constraints of arXiv 2609.36864 (appendix B): the reflection summarises the attempt,
says why it turned out as the record says and what would have been right; it quotes nothing and names no
position; its form is one OUTCOME and one SUMMARY.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from turnpoint.protocols import Root
from turnpoint.types import FinishReason, Message, Task, Verdict

CUT = " [... cut]"
CUT_OFF = "The attempt was cut off at its length limit before it had ended."

_OUTCOME = re.compile(r"OUTCOME:\W*(SUCCESS|FAILURE)\b", re.IGNORECASE)
_STEP = re.compile(r"STEP\s*(\d*)\s*:\W*(\d+)", re.IGNORECASE)


def record(root: Root, *, most: int) -> str:
    """Returns what is known of how a root turned out; feedback beyond `most` characters is cut off.

    A lone surrogate, as undecodable output of a program may hold, is no character for a tokenizer: it becomes
    a replacement character.
    """
    return outcome(root.verdict, root.completion.finish, most=most)


def outcome(verdict: Verdict, finish: FinishReason, *, most: int) -> str:
    """As `record`, of a rollout with that verdict and end."""
    feedback = _characters(verdict.feedback.strip()) or f"The attempt earned a reward of {verdict.reward:g}."
    lines = [feedback if len(feedback) <= most else f"{feedback[:most]}{CUT}"]
    if finish is FinishReason.LENGTH:
        lines.append(CUT_OFF)
    return "\n".join(lines)


def _characters(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def reflection_request(task: Task, attempt: str, record: str) -> Message:
    """Returns the message to which the policy answers with a reflection."""
    return Message(
        role="user",
        content=(
            f"{conversation(task.messages)}\n\n[A completed attempt]\n{attempt}\n\n[Record]\n{record}\n\n"
            "Look back at this attempt. Say in your own words which approach it took and why that led to "
            "what the record says. If it failed, say which approach would have been right. Do not quote the "
            "attempt, and mention no positions, line numbers or percentages.\n"
            "Answer in exactly this form and stop after the summary:\n"
            "OUTCOME: SUCCESS or FAILURE\n"
            "SUMMARY: <60 to 120 tokens>"
        ),
    )


def steps_request(
    task: Task, steps: Sequence[str], record: str, *, count: int, low: int, high: int
) -> Message:
    """Returns the message to which the policy answers with the numbers of `count` steps of low..high."""
    numbered = "\n".join(f"{number}. {' '.join(step.split())}" for number, step in enumerate(steps, start=1))
    names = ["STEP", *(f"STEP{number}" for number in range(2, count + 1))]
    form = "\n".join(f"{name}: <number>" for name in names)
    return Message(
        role="user",
        content=(
            f"{conversation(task.messages)}\n\n[A completed attempt, step by step]\n{numbered}\n\n"
            f"[Record]\n{record}\n\n"
            f"At which steps from {low} to {high} would another choice have changed most how the attempt "
            f"turned out? Name {count}, the most important first, far apart from each other.\n"
            f"Answer with exactly {'this line' if count == 1 else 'these lines'} and nothing else:\n{form}"
        ),
    )


def conversation(messages: Sequence[Message]) -> str:
    """Returns the problem as one text; several turns are told apart by their roles."""
    if len(messages) == 1:
        return f"[Problem]\n{messages[0].content}"
    return "[Problem]\n" + "\n".join(f"{message.role}: {message.content}" for message in messages)


def hindsight(record: str, reflection: str = "") -> str:
    """Returns h = [f; r]: what stands in the prompt under which a root is scored."""
    text = f"This problem was attempted before.\n[Record]\n{record}"
    return f"{text}\n[Reflection]\n{reflection}" if reflection else text


def solved_hindsight(solution: str) -> str:
    """Returns h from another rollout of the group that earned its reward."""
    return f"This problem was solved before.\n[A solution]\n{solution}"


def parse_outcome(reflection: str) -> bool | None:
    """Returns whether the reflection's first OUTCOME says SUCCESS; None when it has none.

    >>> parse_outcome("OUTCOME: FAILURE\\nSUMMARY: It added where ..."), parse_outcome("It went well.")
    (False, None)
    """
    found = _OUTCOME.search(reflection)
    return None if found is None else found[1].upper() == "SUCCESS"


def parse_steps(answer: str, *, low: int, high: int) -> list[int]:
    """Returns the numbers of the STEP lines, in their order, without repetitions and without those outside.

    >>> parse_steps("STEP: 3\\nSTEP2: 9\\nSTEP3: 3", low=1, high=5)
    [3]
    """
    numbers = [int(found[2]) for found in _STEP.finditer(answer) if len(found[2]) < 9]
    return list(dict.fromkeys(number for number in numbers if low <= number <= high))
