"""What supervised fine-tuning says: its plan, a step as fields, and what came of it in words."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnpoint.config import SftConfig
from turnpoint.reports.findings import Finding
from turnpoint.reports.plan import (
    ModelFacts,
    files_line,
    model_lines,
    optimizer_line,
    prompt_form,
    prompt_lines,
    recompute_note,
)
from turnpoint.reports.step import StepReport
from turnpoint.reports.text import cut, number, plural, visible

_WORSE = 0.005  # nats per token that a figure of two digits shows


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What examples that never train are worth to the model."""

    cross_entropy: float  # nats per solution token
    tokens: int
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleFacts:
    """What the plan says about the examples."""

    notes: tuple[str, ...]  # how they were read and what was left out
    alone: int  # solutions that are not written as in a finished conversation
    lengths: tuple[int, ...]  # prompt and solution, tokens, of those that train
    solution_tokens: int  # all that one pass trains
    held_out: int
    train_problems: int  # fewer than examples where a problem has several solutions
    held_out_problems: int
    first_prompt: str  # decoded with its special tokens
    first_prompt_tokens: int
    first_solution: str  # the same, of what trains


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPlan:
    """The sizes of a run and the page that shows them."""

    name: str
    steps: int
    entries: tuple[tuple[str, tuple[str, ...]], ...]  # label, lines
    first_prompt: tuple[str, ...]  # lines, made visible
    first_prompt_tokens: int


def make_sft_plan(
    config: SftConfig, *, model: ModelFacts, examples: ExampleFacts, steps: int, folder: Path
) -> SftPlan:
    """Returns the plan of `config`; what cannot work was refused before."""
    count = len(examples.lengths)
    return SftPlan(
        name=config.name,
        steps=steps,
        entries=(
            ("model", tuple(model_lines(model))),
            ("data", (*examples.notes, *_sides(examples))),
            ("examples", tuple(_examples(config, examples, model.context_length))),
            ("run", (_run(config, count, steps),)),
            ("objective", ("cross-entropy, mean over the solution tokens of a step; prompts do not train",)),
            ("optimizer", (optimizer_line(config.optimizer),)),
            ("files", (files_line(folder, "metrics.jsonl", save_every=config.training.save_every),)),
        ),
        first_prompt=tuple(prompt_lines(examples.first_prompt)),
        first_prompt_tokens=examples.first_prompt_tokens,
    )


def _sides(examples: ExampleFacts) -> Iterator[str]:
    train, held_out = len(examples.lengths), examples.held_out
    yield f"{number(train)} to train on, {number(held_out)} held out"
    problems = examples.train_problems + examples.held_out_problems
    if problems < train + held_out:
        apart = f"; {number(examples.held_out_problems)} of them are held out with all their solutions"
        yield (
            f"these are {plural(train + held_out, 'solution')} of {plural(problems, 'problem')}"
            f"{apart if held_out else ''}"
        )


def _examples(config: SftConfig, examples: ExampleFacts, context: int) -> Iterator[str]:
    lengths = examples.lengths
    yield f"{prompt_form(config.prompt)}; solution = column {visible(config.solution)}"
    yield (
        f"{min(lengths)} to {max(lengths)} tokens with the prompt, median {statistics.median(lengths):.0f}, "
        f"of {number(context)} in the context; {number(examples.solution_tokens)} solution tokens"
    )
    if examples.alone:
        yield (
            f"{plural(examples.alone, 'solution')} tokenized apart and put behind their prompts, as in "
            f"sampling: the finished conversation as template and tokenizer write it begins otherwise, or "
            f"holds more than the solution. Harmless: prompts and solutions are whole"
        )
    yield f'the first one trains "{cut(examples.first_solution, 200, "both")}"'


def _run(config: SftConfig, count: int, steps: int) -> str:
    training = config.training
    passes = "1 pass" if training.epochs == 1 else f"{training.epochs:g} passes"
    return (
        f"{plural(steps, 'step')} of {plural(training.examples_per_step, 'example')} = {passes} over "
        f"{plural(count, 'example')}; seed {config.seed}{recompute_note(training)}"
    )


def sft_step_fields(report: StepReport, *, steps: int) -> list[str]:
    """Returns the fields of a step's line; a figure that does not exist has no field."""
    return [*_fields(report, steps)]


def _fields(report: StepReport, steps: int) -> Iterator[str]:
    values = {name: metric.value for name, metric in report.metrics.items() if metric.value is not None}
    yield f"step {report.step:>{len(str(steps))}}/{steps}"
    yield f"cross-entropy {values['cross_entropy']:6.3f}"
    yield f"entropy {values['entropy']:5.3f}"
    yield f"tokens {number(values['trained_tokens'])}"
    yield f"grad norm {number(values['grad_norm']):>7}"
    yield f"lr {values['learning_rate']:.2e}"
    yield f"{report.wall_seconds:.2f} s"


def sft_verdict(
    losses: Sequence[float], *, before: HeldOut | None, after: HeldOut | None
) -> tuple[Finding, ...]:
    """Says what came of it; `losses` are the cross-entropies of the steps in order."""
    return tuple(_verdict(losses, before, after))


def _verdict(losses: Sequence[float], before: HeldOut | None, after: HeldOut | None) -> Iterator[Finding]:
    if losses:
        yield Finding(
            rule="training_cross_entropy",
            text=f"training cross-entropy {losses[0]:.2f} in the first step, {losses[-1]:.2f} in the last, "
            f"nats per token",
            warning=False,
        )
    if before is None or after is None:
        yield Finding(
            rule="held_out",
            text="no held-out examples: nothing says how it does on others; set for example held_out=64",
            warning=False,
        )
        return
    old, new = before.cross_entropy, after.cross_entropy
    change = new - old
    over = f"on {plural(after.examples, 'example')}, {plural(after.tokens, 'token')}"
    text = f"held-out cross-entropy {old:.2f} -> {new:.2f} nats per token {over}"
    if change > _WORSE:
        text += "; it got worse: fewer epochs, a lower learning rate or more examples"
    elif change > -_WORSE:
        text += "; unchanged"
    yield Finding(rule="held_out", text=text, warning=change > _WORSE)
