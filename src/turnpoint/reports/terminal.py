"""What a person sees while a run works: rich on a terminal, plain lines anywhere else.

On a terminal the running phase is a live line at the bottom. Elsewhere (a pipe, a file, TERM=dumb) it is a
plain line after 1.5 seconds and then ever more rarely, up to half a minute apart; lines of steps begin with
"step", everything in between is indented. Colour follows NO_COLOR. Text is written out so that it can
neither move nor break anything.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast, final

from rich.console import Console, ConsoleRenderable
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnpoint.diagnosis.checks import Diagnosis, Status
from turnpoint.reports.completions import choose_samples, completions_table
from turnpoint.reports.evaluation_table import evaluation_table, invalid_lines
from turnpoint.reports.findings import Finding
from turnpoint.reports.phase import Phase
from turnpoint.reports.plan import Plan
from turnpoint.reports.sft import SftPlan
from turnpoint.reports.step import StepReport
from turnpoint.reports.step_line import legend, step_fields, wrap_fields
from turnpoint.reports.text import duration, plural, visible
from turnpoint.rollout.evaluate import Evaluation

_PLAIN_WIDTH = 120
_RAREST = 20  # heartbeats between lines of a long phase: a log is read later, and must stay readable
_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "red"}
_REPEAT = 10  # steps after which an unchanged kind of finding is said again


@final
class Terminal:
    """Writes to `console` (default: standard output).

    `heartbeat`: seconds to the first line of a phase where there is no live one; the next ones come ever
    more rarely. `completions_every`: steps between tables
    of completions. The stream is told to write out what its encoding lacks. Errors of the stream, a closed
    pipe above all, are raised to whoever calls, not hidden.
    """

    def __init__(
        self, console: Console | None = None, *, heartbeat: float = 1.5, completions_every: int = 5
    ) -> None:
        self._console = Console() if console is None else console
        _write_out_what_cannot_be_encoded(self._console.file)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._heartbeat = heartbeat
        self._completions_every = completions_every
        self._tables = 0
        self._stepped = False
        self._steps: int | None = None
        self._said: dict[str, int] = {}  # rule -> step at which it was last said
        self._lock = threading.Lock()

    def line(self, text: str, style: str = "") -> None:
        """Writes one line."""
        self._print(Text(visible(text), style=style))

    def texts(self, texts: Sequence[Text]) -> None:
        """Writes styled lines, whose text is already visible; without a terminal they have no style."""
        for text in texts:
            self._print(text)

    def plan(self, plan: Plan | SftPlan) -> None:
        """Writes what the run is about to do, and remembers how many steps it has."""
        self._steps = plan.steps
        self.line(f"turnpoint: {plan.name}", "bold")
        for label, lines in plan.entries:
            self._entry(label, lines)
        self._first_prompt(plan.first_prompt_tokens, plan.first_prompt)

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Generator[Phase]:
        """Shows a phase while the block runs; call `advance` on what it gives."""
        phase = Phase(name, total)
        if self._live:
            status = Live(
                console=self._console,
                get_renderable=lambda: Text(
                    phase.describe(), style="cyan", no_wrap=True, overflow="ellipsis"
                ),
                transient=True,
            )
            with status:
                yield phase
        else:
            with self._beating(phase):
                yield phase

    def step(self, report: StepReport) -> None:
        """Writes a step's line, its findings, and every few steps some of its completions.

        A finding whose rule was said within the last 10 steps is not repeated; the log has them all.
        """
        if not self._stepped:
            self._stepped = True
            self.line("")
            self._hanging("  ", legend(report), "dim")
        self.fields(step_fields(report, steps=self._steps))
        fresh = [finding for finding in report.findings if self._is_fresh(finding, report.step)]
        self.findings(fresh)
        if (report.step - 1) % self._completions_every == 0:
            self._completions(report)

    def fields(self, fields: Sequence[str]) -> None:
        """Writes fields side by side; on a terminal, lines break between them."""
        for line in wrap_fields(fields, width=self._width if self._live else None, indent=2):
            self._print(Text(line))

    def findings(self, findings: Sequence[Finding]) -> None:
        """Writes sentences: "!" before what should be acted on, "-" before the rest."""
        for finding in findings:
            mark, style = ("!", "yellow") if finding.warning else ("-", "green")
            self._hanging(f"  {mark} ", visible(finding.text), style)

    def evaluation(self, title: str, evaluation: Evaluation) -> None:
        """Writes an evaluation as a table under its title."""
        how = f", avg@{evaluation.samples} at {evaluation.law}" if evaluation.samples else ""
        count = plural(len(evaluation.outcomes), "problem")
        self.line("")
        self.line(f"{title}: {count}, greedy{how}; {duration(evaluation.seconds)}", "bold")
        self._print(evaluation_table(evaluation))
        for line in invalid_lines(evaluation):
            self._hanging("  ! ", line, "yellow")

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        """Writes what the model will be shown, a line for each check, and the verdict."""
        self.line("")
        self._first_prompt(diagnosis.first_prompt_tokens, diagnosis.first_prompt)
        for check in diagnosis.checks:
            lead = f"  {check.status:<8} {check.name:<18} "
            self._hanging(lead, visible(check.text), _STYLES[check.status])
        self.line(f"{diagnosis.name} {diagnosis.verdict}", "bold" if diagnosis.can_run else "bold red")

    # --- below: how it is written -------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return self._console.width if self._live else _PLAIN_WIDTH

    def _completions(self, report: StepReport) -> None:
        samples = choose_samples(report.groups, turn=self._tables)
        self._tables += 1
        if samples:
            self._print(completions_table(samples, width=self._width))

    def _is_fresh(self, finding: Finding, step: int) -> bool:
        last = self._said.get(finding.rule)
        if last is not None and step - last < _REPEAT:
            return False
        self._said[finding.rule] = step
        return True

    def _first_prompt(self, tokens: int, lines: Sequence[str]) -> None:
        self.line(f"  first prompt, {plural(tokens, 'token')}, as the model sees it:", "bold")
        for line in lines:
            self._hanging("  | ", line, "dim")

    def _entry(self, label: str, lines: Sequence[str]) -> None:
        for index, line in enumerate(lines):
            self._hanging(f"  {label if index == 0 else '':<10} ", visible(line), "")

    def _hanging(self, lead: str, text: str, style: str) -> None:
        """Writes `text` after `lead`; on a terminal, wrapped lines stay right of it."""
        if not self._live:
            self._print(Text(lead + text))
            return
        grid = Table.grid(padding=0)
        grid.add_column(width=len(lead), no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(lead, style=style or "bold"), Text(text, style=style))
        self._print(grid)

    def _print(self, renderable: ConsoleRenderable) -> None:
        if self._live:
            self._console.print(renderable)
            return
        page = io.StringIO()
        plain = Console(file=page, width=_PLAIN_WIDTH, force_terminal=False, color_system=None)
        plain.print(renderable, soft_wrap=isinstance(renderable, Text))
        lines = [line.rstrip() for line in page.getvalue().splitlines()]
        with self._lock:
            self._console.file.write("\n".join(lines) + "\n")
            self._console.file.flush()

    @contextmanager
    def _beating(self, phase: Phase) -> Generator[None]:
        done = threading.Event()

        def beat() -> None:
            wait = self._heartbeat
            while not done.wait(wait):
                try:
                    self.line(f"  {phase.describe()}")
                except (OSError, ValueError):  # closed: the next line of the main thread raises it
                    return
                wait = min(2 * wait, _RAREST * self._heartbeat)

        thread = threading.Thread(target=beat, name=f"heartbeat-{phase.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _write_out_what_cannot_be_encoded(stream: object) -> None:
    if isinstance(stream, io.TextIOWrapper):
        cast(io.TextIOWrapper, stream).reconfigure(errors="backslashreplace")
