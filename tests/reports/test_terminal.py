"""What is printed, on a terminal of any size and anywhere else."""

import io
import re
import time
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.reports.samples import make_evaluation, make_group
from turnpoint.config import parse_recipe
from turnpoint.diagnosis.checks import Diagnosis, failed, ok, warning
from turnpoint.metrics import Mean
from turnpoint.reports.comparison import compare
from turnpoint.reports.completions import choose_samples
from turnpoint.reports.findings import Finding, FindingLimits
from turnpoint.reports.plan import ModelFacts, Plan, make_plan
from turnpoint.reports.step import StepReport, make_step_report
from turnpoint.reports.terminal import Terminal
from turnpoint.types import Group

ODD = (
    "\x1b[2J\x1b]0;title\x07\ud800\x00\u202e\u200b[red]x[/red] :smile:\r\n"
    "\u65e5\u672c\u8a9e\U0001f469\u200d\U0001f467\u0301 \\neq\t" * 30
)


def plan_of(first_prompt: str = "<|user|>3 + 4 =\n<|assistant|>", steps: int = 20) -> Plan:
    return make_plan(
        parse_recipe(
            {"name": "demo", "tasks": {"kind": "reasoning_gym", "name": "x"}, "training": {"steps": steps}}
        ),
        model=ModelFacts(
            name="tiny", parameters=1000, dtype="float32", device="cpu", context_length=256, adapter=None
        ),
        data=["x: 3 rows, first problem \u65e5\u672c"],
        num_train=2,
        num_eval=1,
        prompt_lengths=[12],
        first_prompt=first_prompt,
        folder=Path("runs/demo"),
        workers=1,
        threads=2,
    )


def report_of(step: int, groups: list[Group] | None = None) -> StepReport:
    return make_step_report(
        step=step,
        groups=groups or [make_group([0.0, 0.0], texts=["The sum\nis 7.", "8"])],
        trainer_metrics={"entropy": Mean.of([0.5])},
        seconds={"rollouts": 1.0},
        wall_seconds=1.0,
        limits=FindingLimits(max_new_tokens=256, clip_low=0.2, clip_high=0.28, mismatch_tolerance=0.1),
        first=step == 1,
    )


def write_everything(terminal: Terminal, *, text: str = "7") -> None:
    """One of each kind of output, with `text` wherever text of others can stand."""
    terminal.plan(plan_of(first_prompt=text))
    with terminal.phase("rollouts", 2) as phase:
        phase.advance(1, 40)
    group = make_group([0.0, text], texts=[text, text], question=text, name=text, truncated=[0])
    terminal.step(report_of(1, [group]))
    terminal.evaluation("before", make_evaluation([0.0, 1.0, text], [[1.0, text]] * 3))
    terminal.findings(compare(make_evaluation([0.0]), make_evaluation([1.0])))
    terminal.line(text)


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def pipe(stream: io.TextIOBase) -> Console:
    return Console(file=stream)  # type: ignore[arg-type]


def screen(stream: io.StringIO, columns: int = 80) -> Console:
    return Console(file=stream, force_terminal=True, width=columns, height=2)


def test_the_page_in_a_pipe() -> None:
    stream = io.StringIO()
    terminal = Terminal(pipe(stream))
    terminal.plan(plan_of())
    terminal.step(report_of(1))
    assert stream.getvalue().splitlines()[-10:] == [
        "  first prompt, 12 tokens, as the model sees it:",
        "  | <|user|>3 + 4 =\u21b5",
        "  | <|assistant|>",
        "",
        "  reward: mean of valid rollouts; solved: share with reward >= 1; signal: groups whose rewards "
        "differ, the only ones that teach; length: mean tokens",
        "step  1/20  reward  0.000  solved   0 %  signal 0/1  length    3  truncated   0 %  entropy 0.500  "
        "1.0 s (rollouts 1.0)",
        "  ! no learning signal: every group has equal rewards (all 0.0): too hard for this policy, or "
        "answers in a form the verifier does not find",
        "  reward  tokens",
        "       0       3  prompt  3 + 4 =",
        "                  answer  The sum\u21b5is 7.",
    ]


@pytest.mark.parametrize("text", ["7", ODD, " "])
def test_a_pipe_gets_plain_lines(text: str) -> None:
    stream = io.StringIO()
    write_everything(Terminal(pipe(stream)), text=text)
    output = stream.getvalue()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b]", output)
    assert output.endswith("\n")
    output.encode()


@pytest.mark.parametrize("columns", [1, 2, 7, 20, 40, 80, 200])
def test_no_terminal_is_too_small_and_none_is_moved(columns: int) -> None:
    stream = io.StringIO()
    write_everything(Terminal(screen(stream, columns)), text=ODD)
    output = stream.getvalue()
    assert "\x1b[2J" not in output
    assert not re.search(r"\x1b\]|[\x00\x07\u202e\u200b\ud800]", output)
    output.encode()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit_the_terminal(columns: int) -> None:
    stream = io.StringIO()
    write_everything(Terminal(screen(stream, columns)), text="\u65e5\u672c\u8a9e answer " * 50)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n")
    assert max(cell_len(line) for line in plain.splitlines()) <= columns


def test_colour_is_off_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    write_everything(Terminal(screen(stream)))
    assert re.search(r"\x1b\[3\dm", stream.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    write_everything(Terminal(screen(stream)))
    assert not re.search(r"\x1b\[[34]\d", stream.getvalue())


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    terminal = Terminal(screen(stream), heartbeat=0.01)
    write_everything(terminal)
    with terminal.phase("training", 5):
        wait_for(stream, r"\n  training 0/5  0\.\d s\n")
    assert "\x1b" not in stream.getvalue()


def test_what_a_stream_cannot_encode_is_written_out() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    write_everything(Terminal(pipe(stream)), text=ODD)
    stream.flush()
    assert b"\\u65e5\\u672c" in raw.getvalue()


def wait_for(stream: io.StringIO, pattern: str) -> str:
    for _ in range(2000):
        if found := re.search(pattern, stream.getvalue()):
            return found[0]
        time.sleep(0.005)
    raise AssertionError(f"{pattern!r} never came in {stream.getvalue()!r}")


def test_a_long_phase_is_never_silent_in_a_pipe() -> None:
    stream = io.StringIO()
    with Terminal(pipe(stream), heartbeat=0.01).phase("rollouts", 64) as phase:
        wait_for(stream, r"  rollouts 0/64  0\.\d s\n")
        phase.advance(3, 90)
        wait_for(stream, r"  rollouts 3/64  [\d,]+ tokens/s  0\.\d s\n")
        phase.advance(2, 80)
        wait_for(stream, r"  rollouts 5/64  [\d,]+ tokens/s")
    after = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == after


def test_a_phase_is_live_on_a_terminal() -> None:
    stream = io.StringIO()
    terminal = Terminal(screen(stream))
    with terminal.phase("training", 5) as phase:
        phase.advance()
        wait_for(stream, r"training 1/5")
        terminal.line("in between")
    assert "in between" in stream.getvalue()


def test_a_phase_lets_errors_through() -> None:
    with pytest.raises(RuntimeError, match="inside"), Terminal(pipe(io.StringIO())).phase("rollouts"):
        raise RuntimeError("inside")


class ClosedPipe(io.StringIO):
    """Its reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_closed_pipe_is_raised_to_the_caller_and_not_from_the_heartbeat() -> None:
    terminal = Terminal(pipe(ClosedPipe()), heartbeat=0.001)
    with terminal.phase("rollouts"):
        time.sleep(0.02)
    with pytest.raises(BrokenPipeError):
        terminal.line("x")


def test_the_default_stream_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().line("by default")
    assert capsys.readouterr().out == "by default\n"


def test_a_finding_is_not_repeated_every_step() -> None:
    stream = io.StringIO()
    terminal = Terminal(pipe(stream))
    for step in range(1, 13):
        terminal.step(report_of(step))
    assert stream.getvalue().count("! no learning signal") == 2  # steps 1 and 11


def test_warnings_and_notes_are_told_apart() -> None:
    stream = io.StringIO()
    Terminal(pipe(stream)).findings(
        [Finding(rule="a", text="act", warning=True), Finding(rule="b", text="note", warning=False)]
    )
    assert stream.getvalue() == "  ! act\n  - note\n"


def diagnosis_of(text: str) -> Diagnosis:
    checks = (ok("stop", text), warning("log-probabilities", text), failed("memory", text))
    return Diagnosis(name="tiny", checks=checks, first_prompt=("<s>3 + 4 =",), first_prompt_tokens=4)


def test_a_diagnosis_is_a_line_for_each_check_and_the_verdict() -> None:
    stream = io.StringIO()
    Terminal(pipe(stream)).diagnosis(diagnosis_of("x" * 200))
    assert stream.getvalue().splitlines() == [
        "",
        "  first prompt, 4 tokens, as the model sees it:",
        "  | <s>3 + 4 =",
        "  ok       stop               " + "x" * 200,
        "  warning  log-probabilities  " + "x" * 200,
        "  failed   memory             " + "x" * 200,
        "tiny must not run: memory",
    ]
    assert diagnosis_of("").exit_status == 2


def test_a_diagnosis_on_a_terminal_keeps_its_columns() -> None:
    stream = io.StringIO()
    Terminal(screen(stream, 60)).diagnosis(diagnosis_of("word \x1b[2J" * 20))
    shown = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
    assert "\x1b" not in shown
    assert all(cell_len(line) <= 60 for line in shown.splitlines())
    assert all(line.startswith(" " * 30) for line in shown.splitlines()[4:7])


def test_completions_come_every_few_steps() -> None:
    stream = io.StringIO()
    terminal = Terminal(pipe(stream), completions_every=3)
    for step in range(1, 8):
        terminal.step(report_of(step))
    assert stream.getvalue().count("  reward  tokens") == 3  # steps 1, 4 and 7


def test_samples_go_round_the_prompts_and_then_the_members() -> None:
    groups = [make_group([0.0, 1.0], name=name) for name in "abc"]
    rounds = [choose_samples(groups, turn=turn, rows=2) for turn in range(6)]
    shown = [(group.task.id, group.members.index(member)) for turn in rounds for group, member in turn]
    assert [name for name, _ in shown] == list("abcabcabcabc")
    assert len(set(shown)) == 6  # every rollout was shown


def test_samples_of_few_or_no_groups() -> None:
    one = make_group([0.0])
    assert len(choose_samples([one], turn=7)) == 1
    assert choose_samples([], turn=0) == []


def test_the_evaluation_table() -> None:
    stream = io.StringIO()
    Terminal(pipe(stream)).evaluation(
        "before", make_evaluation([1.0, 0.0, "late"], [[1.0, 0.5], [0.0, 0.0], [1.0, 1.0]], majority=2 / 3)
    )
    lines = stream.getvalue().splitlines()
    assert lines[1] == "before: 3 problems, greedy, avg@2 at temperature 1; 1.0 s"
    assert lines[2].split() == ["accuracy", "95", "%", "interval", "reward", "truncated", "invalid", "tokens"]
    assert lines[3].split()[:3] == ["greedy", "50.0", "%"]
    assert lines[3].split()[-4:] == ["0", "%", "1", "4"]
    assert lines[4].split()[:3] == ["avg@2", "50.0", "%"]
    assert lines[5].split() == ["pass@2", "66.7", "%", "0.0", "-", "100.0", "%"]
    assert lines[6].split() == ["always", '"7"', "66.7", "%"]
    assert lines[7] == "  ! 11 % of attempts invalid: late (1)"
