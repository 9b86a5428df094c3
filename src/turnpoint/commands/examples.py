"""Examples of supervised fine-tuning: read, encoded, and counted where they cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from turnpoint.config import FewShotPrompt, SftConfig
from turnpoint.errors import DataError
from turnpoint.models.demonstration import UnusableSolution
from turnpoint.models.renderer import ChatRenderer, FewShotRenderer
from turnpoint.reports.phase import Phase
from turnpoint.reports.text import number, plural
from turnpoint.tasks import load_tasks, split_examples
from turnpoint.tasks.solutions import SolvedTask, count_problems, read_solutions, split_problems
from turnpoint.training.sft import Example

Demonstrator: TypeAlias = ChatRenderer | FewShotRenderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Solved tasks as they were read; no problem is in two of the three."""

    report: tuple[str, ...]  # how they were read, in sentences
    shots: tuple[tuple[str, str], ...]  # question and answer, shown in few-shot prompts
    train: tuple[SolvedTask, ...]
    held_out: tuple[SolvedTask, ...]
    left_out: Mapping[str, int]  # rows by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """What a run trains on and measures."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    left_out: Mapping[str, int]  # by reason, rows without a usable solution included

    @property
    def alone(self) -> int:
        """How many solutions are not written as in a finished conversation: `Demonstration.in_context`."""
        return sum(not example.demonstration.in_context for example in (*self.train, *self.held_out))


def read_solved(config: SftConfig) -> Solved:
    """Returns the solved tasks of `config`; raises DataError in one line when there are not enough."""
    dataset = load_tasks(config.tasks, solution=config.solution)
    shots: tuple[tuple[str, str], ...] = ()
    also_shown = 0
    if isinstance(config.prompt, FewShotPrompt):
        shots, rest = split_examples(dataset, config.prompt.shots)
        also_shown = len(dataset.tasks) - len(shots) - len(rest.tasks)
        dataset = rest
    solved, left_out = read_solutions(dataset, config.solution)
    if also_shown:
        left_out["its problem is shown in the few-shot prompt"] = also_shown
    train, held_out = split_problems(solved, config.held_out)
    if not train:
        raise DataError(
            f"{dataset.name}: held_out = {config.held_out} leaves nothing to train on of "
            f"{plural(count_problems(solved), 'problem')}{in_brackets(left_out)}; lower it or bring more "
            f"problems"
        )
    return Solved(
        report=tuple(dataset.report.lines()),
        shots=shots,
        train=train,
        held_out=held_out,
        left_out=left_out,
    )


def encode_examples(solved: Solved, renderer: Demonstrator, *, context: int, phase: Phase) -> Examples:
    """Returns the examples that a policy could have sampled whole within `context` tokens.

    The others are counted. Raises DataError when none is left to train on.
    """
    left_out = Counter(solved.left_out)

    def encode(each: SolvedTask) -> Example | None:
        phase.advance()
        try:
            example = Example(solved=each, demonstration=renderer.demonstrate(each.task.messages, each.text))
        except UnusableSolution as error:
            left_out[str(error)] += 1
            return None
        if example.length > context:
            left_out[f"prompt and solution are longer than the context of {number(context)} tokens"] += 1
            return None
        return example

    train, held_out = (
        tuple(example for each in tasks if (example := encode(each)) is not None)
        for tasks in (solved.train, solved.held_out)
    )
    if not train:
        raise DataError(f"no example is left to train on{in_brackets(left_out)}")
    if solved.held_out and not held_out:
        raise DataError(f"no held-out example can be measured{in_brackets(left_out)}; set held_out=0 or more")
    return Examples(train=train, held_out=held_out, left_out=left_out)


def left_out_lines(left_out: Mapping[str, int]) -> list[str]:
    """Returns the counts as sentences for people."""
    return [f"{plural(count, 'example')} left out: {reason}" for reason, count in left_out.items()]


def in_brackets(left_out: Mapping[str, int]) -> str:
    """Returns the counts as they stand at the end of an error; nothing when nothing was left out."""
    lines = "; ".join(left_out_lines(left_out))
    return f" ({lines})" if lines else ""
