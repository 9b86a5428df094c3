"""`turnpoint filter`: keeps the problems that a policy solves sometimes: those it can learn from."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnpoint.assemble import Policy, Problems, open_verifier
from turnpoint.commands.common import read_policy, read_problems
from turnpoint.commands.origin import judge_checksum
from turnpoint.commands.session import Session
from turnpoint.config import JsonlTasks, ParquetTasks, RunConfig
from turnpoint.config.learning import MOST_SAMPLES
from turnpoint.engine.weights import weights_checksum
from turnpoint.errors import DataError, RecipeError
from turnpoint.reports.findings import invalid_text
from turnpoint.reports.pass_rates import histogram, spread, wider
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import plural
from turnpoint.rollout.difficulty import PassRate, RatesFile, judge_tasks
from turnpoint.tasks import Dataset
from turnpoint.tasks.write import task_row, write_rows
from turnpoint.types import PASSED, Json, Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """What was written, and the pass rates of all problems that were judged, in order."""

    path: Path
    kept: int
    rates: tuple[PassRate, ...]


def filter_tasks(
    config: RunConfig, out: str | Path, *, minimum: float = 0.1, maximum: float = 0.9, samples: int = 8
) -> FilterResult:
    """Writes the problems of `config` whose pass rate lies in [minimum, maximum] to the file `out`.

    The pass rate of a problem is the share of `samples` rollouts of the policy as it is whose reward is above
    0.5; invalid rollouts are left out and counted. Problems that the recipe holds out for evaluation are not
    judged. Rows are of the plain format, in order, with `pass_rate` and the columns of their source; the
    solved examples of a few-shot prompt come first, so that the prompts of later runs stay the same.

    Rates are kept in `out`.rates as they are found: the same call goes on after an interruption, and
    another range costs nothing. Raises UserError for impossible arguments, for a file in the way, when the
    rates there depend on something else, and when nothing is kept.
    """
    out = Path(out)
    _check_arguments(minimum, maximum, samples)
    _check_output(config, out)
    rates_path = out.with_name(f"{out.name}.rates")
    if out.exists() and not RatesFile.begun(rates_path):
        raise DataError(f"{out} exists and is no output of turnpoint filter; choose another file")
    terminal = Terminal()
    problems = read_problems(config, terminal)
    with open_verifier(config) as verifier:
        policy = read_policy(config, problems, terminal)
        session = Session(config=config, policy=policy, verifier=verifier, terminal=terminal)
        with RatesFile(rates_path, _depends_on(config, policy, problems, samples)) as file:
            tasks = asyncio.run(_judge(session, problems.train, file, samples))
    rates = tuple(file.known[task.id] for task in tasks)
    _show(terminal, rates, samples=samples, minimum=minimum, maximum=maximum)
    rows = [
        task_row(task, {"pass_rate": rate.rate})
        for task, rate in zip(tasks, rates, strict=True)
        if rate.rate is not None and minimum <= rate.rate <= maximum
    ]
    if not rows:
        known = _known(rates)
        raise DataError(
            f"no problem has a pass rate between {minimum:g} and {maximum:g}; of {len(known)}: "
            f"{spread(known)}; {wider(known, minimum=minimum, maximum=maximum)}"
        )
    write_rows(out, [*_shots(problems.examples), *rows])
    _say_written(terminal, config, out, len(rows), len(problems.examples))
    return FilterResult(path=out, kept=len(rows), rates=rates)


def _check_arguments(minimum: float, maximum: float, samples: int) -> None:
    if not (0 <= minimum <= 1 and 0 <= maximum <= 1):
        raise RecipeError(f"--min {minimum:g} --max {maximum:g}: pass rates lie between 0 and 1")
    if minimum > maximum:
        raise RecipeError(f"--min {minimum:g} is above --max {maximum:g}; no pass rate lies between them")
    if not 1 <= samples <= MOST_SAMPLES:
        raise RecipeError(
            f"--samples {samples}: a pass rate needs at least one rollout of each problem and at most "
            f"{MOST_SAMPLES}"
        )


def _check_output(config: RunConfig, out: Path) -> None:
    if not out.name or out.is_dir():
        raise DataError(f"{out} is a folder; name a file to write to")
    if not out.parent.is_dir():
        raise DataError(f"{out}: there is no folder {out.parent}; make it, or choose another file")
    if isinstance(config.tasks, JsonlTasks | ParquetTasks) and config.tasks.path.resolve() == out.resolve():
        raise DataError(f"{out} is what is filtered; choose another file to write to")


def _depends_on(config: RunConfig, policy: Policy, problems: Problems, samples: int) -> dict[str, Json]:
    recipe = config.model_dump(mode="json")
    return {
        "model": recipe["model"]["path"],
        "dtype": policy.model.dtype,
        "weights": weights_checksum(dict(policy.model.decoder.model.named_parameters())),
        "problems": problems.train.fingerprint,
        "judge": judge_checksum(config.verifier),
        **{section: recipe[section] for section in ("prompt", "verifier", "sampling", "seed")},
        "examples": [list(pair) for pair in problems.examples],
        "samples": samples,
    }


async def _judge(session: Session, dataset: Dataset, file: RatesFile, samples: int) -> Sequence[Task]:
    """Brings `file` up to date and returns the tasks that can be judged, in order."""
    config, terminal = session.config, session.terminal
    usable, _, notes = await session.usable(dataset)
    tasks = usable.tasks
    left = [task for task in tasks if task.id not in file.known]
    for line in (*dataset.report.lines(), *notes):
        terminal.line(f"  {line}")
    terminal.line(
        f"  {plural(len(tasks), 'problem')} x {plural(samples, 'sample')} at temperature "
        f"{config.sampling.temperature:g}, up to {config.sampling.max_new_tokens} tokens each; a reward "
        f"above {PASSED:g} counts as passed"
    )
    if len(left) < len(tasks):
        terminal.line(f"  {plural(len(tasks) - len(left), 'problem')} judged before, {len(left)} left")
    rollouter = session.rollouter(samples)
    try:
        with terminal.phase("rollouts", len(left) * samples) as phase:

            def finished(rate: PassRate, tokens: int) -> None:
                file.append(rate)
                phase.advance(samples, tokens)

            at_once = 2 * -(-config.engine.max_running // samples)  # the engine never waits for a prompt
            await judge_tasks(left, rollouter, at_once=at_once, finished=finished)
    except asyncio.CancelledError:
        terminal.line(f"stopped with {len(file.known)} problems judged; the same command goes on from there")
        raise
    return tasks


def _known(rates: Iterable[PassRate]) -> list[float]:
    return [rate.rate for rate in rates if rate.rate is not None]


def _show(
    terminal: Terminal, rates: Sequence[PassRate], *, samples: int, minimum: float, maximum: float
) -> None:
    known = _known(rates)
    reasons = Counter[str]()
    for rate in rates:
        reasons.update(rate.invalid)
    if invalid := invalid_text(reasons, total=samples * len(rates), noun="rollouts"):
        terminal.line(f"  ! {invalid}", "yellow")
    if len(known) < len(rates):
        terminal.line(f"  ! {plural(len(rates) - len(known), 'problem')} without a valid rollout, left out")
    if not known:
        raise DataError("no rollout of any problem is valid, so that nothing is known of their difficulty")
    terminal.line("")
    terminal.line(f"pass rates of {plural(len(known), 'problem')}: {spread(known)}", "bold")
    for line in histogram(known, samples=samples, minimum=minimum, maximum=maximum):
        terminal.line(f"  {line}")


def _shots(examples: Sequence[tuple[str, str]]) -> list[dict[str, Json]]:
    """Returns the solved examples of the prompt as rows; nobody judged them."""
    tasks = [
        Task(id="", messages=(Message(role="user", content=question),), answer=answer)
        for question, answer in examples
    ]
    return [task_row(task, {"pass_rate": None}) for task in tasks]


def _say_written(terminal: Terminal, config: RunConfig, out: Path, kept: int, shots: int) -> None:
    before = f" behind the {plural(shots, 'solved example')} of the prompt" if shots else ""
    terminal.line(f"kept {plural(kept, 'problem')}{before}: {out}", "bold")
    terminal.line(f"to train on them: tasks={{kind: jsonl, format: plain, path: {out}}}")
    if config.verifier.kind == "reasoning_gym":
        terminal.line("  ! verifier.kind = reasoning_gym scores generated problems only; choose another one")
