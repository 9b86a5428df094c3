"""What was measured, for people: a table, where a step's time goes, and what it means in words."""

from __future__ import annotations

from rich.text import Text

from turnpoint.reports.text import duration, number, percent, plural, visible
from turnpoint.speed.figures import Figure, Report

_NAMES = {
    "sample_one": "sample, 1 sequence",
    "sample_batch": "sample, the batch",
    "prefill": "prefill",
    "score": "score",
    "train": "train",
}
_HEADER = f"  {'tokens a second':<20}{'reached':>10}{'memory':>11}{'arithmetic':>12}{'share':>8}  measured on"
_STARVED = 0.85
_WORTH_SAYING = 2.0  # sequences from which it pays to say that more cost little


def report_lines(report: Report) -> list[Text]:
    """Returns the lines of a report; they read the same without their styles."""
    machine, shape = report.machine, report.shape
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        Text(f"turnpoint bench: {visible(report.model)}", style="bold"),
        Text(f"  model      {number(report.parameters / 1e6)} M weights, {machine.dtype}, {machine.device}"),
        Text(
            f"  machine    {machine.processor}; {plural(machine.cores, 'core')}, "
            f"{plural(machine.threads, 'thread')}{_workers(report)}, load {machine.load:g}; {versions}; "
            f"{machine.date}"
        ),
        Text(
            f"  asked for  {plural(shape.prompts, 'prompt')} of {shape.prompt_tokens} tokens x "
            f"{plural(shape.samples, 'sample')} of {shape.new_tokens}; {plural(report.rounds, 'round')}"
        ),
        Text(
            f"  ceilings   memory {number(report.bandwidth / 1e9)} GB/s, products of the batch "
            f"{number(report.flops / 1e9)} GFLOP/s"
        ),
        Text(""),
        Text(_HEADER, style="bold"),
        *[Text(_row(figure)) for figure in report.figures],
        Text(""),
    ]
    if report.phases is not None:
        shares = ", ".join(
            f"{name} {percent(value / report.phases.step)}" for name, value in report.phases.parts.items()
        )
        lines.append(Text(f"  a step of the batch, {number(1e3 * report.phases.step)} ms profiled: {shares}"))
    lines += [Text(f"  - {sentence}", style="green") for sentence in verdict(report)]
    warnings = (*report.notes, *machine.warnings, *_starved(report))
    lines += [Text(f"  ! {warning}", style="yellow") for warning in warnings]
    return lines


def _workers(report: Report) -> str:
    return "" if report.workers == 1 else f" in {report.workers} processes for sampling"


def _starved(report: Report) -> list[str]:
    """What one thread did not get; several wait for each other, which looks the same."""
    machine = report.machine
    if machine.device != "cpu" or machine.threads > 1 or report.processor_share > _STARVED:
        return []
    return [
        f"this process got {percent(report.processor_share)} of the processor time that it asked for; "
        f"the rest went to others"
    ]


def _row(figure: Figure) -> str:
    return (
        f"  {_NAMES[figure.name]:<20}{number(figure.rate):>10}{number(figure.memory_ceiling):>11}"
        f"{number(figure.arithmetic_ceiling):>12}{percent(figure.share):>8}  {figure.detail}"
    )


def verdict(report: Report) -> list[str]:
    """Returns what the figures say, one sentence each."""
    found = {figure.name: figure for figure in report.figures}
    one, batch = found["sample_one"], found["sample_batch"]
    sentences = [
        f"decoding one sequence reads {number(report.step_bytes / 1e6)} MB a token and "
        f"{_reaches(one)}{_crossing(report)}",
        f"the batch samples {number(batch.rate / one.rate)} times as many tokens a second and "
        f"{_reaches(batch)}{_largest(report)}",
    ]
    if (train := report.figure("train")) is not None:
        shape = report.shape
        sampled = shape.prompts * shape.samples * shape.new_tokens
        prompt = shape.prompts * shape.prompt_tokens
        rollouts = prompt / found["prefill"].rate + sampled / batch.rate
        trained = (prompt + sampled) / train.rate
        sentences.append(
            f"a step with every rollout as long as allowed: about {duration(rollouts)} of sampling, "
            f"{duration(trained)} of training"
        )
    return sentences


def _reaches(figure: Figure) -> str:
    if figure.share > 1:
        return f"is faster than {figure.bound} was measured to allow: what it reads stays in caches"
    return f"reaches {percent(figure.share)} of what {figure.bound} allows"


def _crossing(report: Report) -> str:
    if report.crossing < _WORTH_SAYING:
        return "; arithmetic takes at least as long as memory, so more samples cost in proportion"
    return (
        f"; more samples cost little up to about {number(round(report.crossing))} sequences, where "
        f"arithmetic takes over"
    )


def _largest(report: Report) -> str:
    if report.phases is None:
        return ""
    name, seconds = max(report.phases.parts.items(), key=lambda part: part[1])
    return f"; most of a step's time goes to: {name}, {percent(seconds / report.phases.step)}"
