"""Whether the verifier of a recipe can judge its problems, and is there where a verdict is needed."""

from __future__ import annotations

from collections.abc import Mapping

from turnpoint.config.asking import (
    HumanEvalTasks,
    NoVerifierConfig,
    ReasoningGymTasks,
    TasksConfig,
    VerifierConfig,
)

PROGRAMS = ("deepcoder", "rstar", "humaneval", "mbpp")  # formats of rows with tests


def judge_fits(
    verifier: VerifierConfig, tasks: TasksConfig, *, taught_only: bool, needed_by: Mapping[str, bool]
) -> None:
    """Raises ValueError in one line, with the way out, unless `verifier` goes with `tasks` and the rest.

    `taught_only`: whether rewards teach nothing; `needed_by`: by name, what needs verdicts if it is there.
    """
    generated = isinstance(tasks, ReasoningGymTasks)
    if verifier.kind == "reasoning_gym" and not generated:
        raise ValueError(f"verifier.kind = reasoning_gym scores only reasoning_gym tasks, not {tasks.kind}")
    rows = None if isinstance(tasks, ReasoningGymTasks | HumanEvalTasks) else tasks
    programs = tasks.kind == "humaneval" if rows is None else rows.format in PROGRAMS
    if programs and verifier.kind == "math":
        raise ValueError(
            f"{tasks.kind} tasks are programs, and verifier.kind = math judges none; take verifier.kind=code"
        )
    if verifier.kind == "code" and not programs and (rows is None or rows.format not in ("auto", "plain")):
        raise ValueError(
            f"verifier.kind = code needs tests, and {tasks.kind} tasks of this format have none; take "
            f"tasks of kind humaneval, or of format {', '.join(PROGRAMS)}"
        )
    if rows is not None and rows.format == "turns" and verifier.kind == "math":
        raise ValueError(
            "tasks.format = turns has no gold answers for verifier.kind = math; take kind = none with "
            "distill.task = false, or kind = function"
        )
    if not isinstance(verifier, NoVerifierConfig):
        return
    if not taught_only:
        raise ValueError(
            "verifier.kind = none gives no rewards to learn from; let a teacher alone teach "
            "(distill.task = false), or take another verifier"
        )
    if needing := [name for name, there in needed_by.items() if there]:
        raise ValueError(
            f"verifier.kind = none, and {' and '.join(needing)} cannot do without verdicts; leave out one or "
            f"the other"
        )
