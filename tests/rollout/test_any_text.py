"""Whatever a model or a verifier writes passes disk, terminal, log and trackers, and comes back."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from turnpoint.reports.findings import FindingLimits
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.run_records import read_metrics
from turnpoint.reports.step import StepReport, make_step_report
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.trackers import Trackers
from turnpoint.rollout import RolloutWriter, read_groups
from turnpoint.rollout.evaluate import Attempt, Evaluation, Outcome
from turnpoint.types import Author, FinishReason, Group, Member, Message, Task, TreeBuilder, Verdict

LIMITS = FindingLimits(max_new_tokens=8, clip_low=0.2, clip_high=0.28, mismatch_tolerance=0.1)
NASTY = [
    "",
    "\ud800",
    "\udc00\ud800",
    "\ud83d\ude00",  # two halves that are one character together
    "a\0b",
    "line\u2028paragraph\u2029next\x85line\x0b\x0c",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u200f\u202eabc",
    '{"reward": 1, "text": "',
    '"}\n{"format": 1}\n',
    "\\ud800 \\n [bold red] [/] \x1b[2J\x1b]0;title\x07 \r",
    "NaN",
    "\ufeff\ufffe",
]
ANY_TEXT = st.one_of(st.sampled_from(NASTY), st.text(st.characters(), max_size=40))


def group_of(text: str, reason: str) -> Group:
    """A group that has the text wherever a group can hold one."""
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[1])
    verdicts = [
        Verdict.scored(0.5, reason=reason, feedback=text, parts={text: 0.5}),
        Verdict.invalid(reason or "no reason"),
    ]
    members: list[Member] = []
    for verdict in verdicts:
        leaf = tree.append(
            parent=prompt, author=Author.POLICY, token_ids=[2], logprobs=[-0.5], policy_version=0
        )
        member = Member(leaf=leaf, segments=(leaf,), text=text, verdict=verdict, finish=FinishReason.STOP)
        members.append(member)
    messages = (Message(role="user", content=text),)
    task = Task(id=text, messages=messages, answer=text, metadata={text: [text, {reason: text}]})
    return Group(id="1/0", task=task, tree=tree.freeze(), members=tuple(members))


def spelled(text: str) -> str:
    """JSON knows no surrogate pair: its two halves are the character that they spell."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@given(ANY_TEXT, ANY_TEXT)
@example("x" * 1_000_000, "")
@example("", "\ud800\U0001f600" * 100_000)
def test_a_group_of_any_text_comes_back_from_disk(text: str, reason: str) -> None:
    groups = [group_of(text, reason), group_of(reason, text)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        with RolloutWriter(path) as writer:
            for group in groups:
                writer.write(group)
        assert path.read_bytes().count(b"\n") == 2  # one line per group, for every tool that reads lines
        assert list(read_groups(path)) == [
            group_of(spelled(text), spelled(reason)),
            group_of(spelled(reason), spelled(text)),
        ]


@given(ANY_TEXT, ANY_TEXT)
@example("x" * 1_000_000, "\n" * 1_000_000)
@example("\u2028" * 1_000_000, "\U0001f600" * 1_000_000)
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_report_of_any_text_is_shown_in_few_lines(
    live: bool, encoding: str, text: str, reason: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal = Terminal(Console(file=stream, force_terminal=live, width=100), heartbeat=1000)
    terminal.step(report_of(text, reason))
    terminal.evaluation("title", evaluation_of(text, reason))
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert len(shown.splitlines()) < 80
    assert "\0" not in shown
    assert "\x1b]0;title" not in shown  # nothing of the text moves or renames the terminal
    assert "\x1b[2J" not in shown


def report_of(text: str, reason: str) -> StepReport:
    return make_step_report(
        step=1,
        groups=[group_of(text, reason), group_of(reason, text)],
        trainer_metrics={},
        seconds={},
        wall_seconds=1.0,
        limits=LIMITS,
        first=True,
    )


def evaluation_of(text: str, reason: str) -> Evaluation:
    attempts = tuple(
        Attempt(text=text, tokens=1, finish=FinishReason.STOP, verdict=member.verdict)
        for member in group_of(text, reason).members
    )
    return Evaluation(
        outcomes=(Outcome(task_id=text, greedy=attempts[0], sampled=attempts),),
        samples=2,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=8,
        seed=0,
        seconds=1.0,
        majority_answer=text,
        majority_accuracy=0.5,
    )


@dataclasses.dataclass
class _Remembering:
    place: Path
    names: list[str] = dataclasses.field(default_factory=list[str])
    name: str = "file"
    about: str = "a file"
    pattern: str = "*.txt"

    def start(self) -> None:
        """Nothing to open."""

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Encodes as every tracker must."""
        self.names += figures
        (self.place / "names.txt").write_bytes("\n".join([str(step), *figures]).encode())

    def finish(self) -> None:
        """Nothing to close."""


@given(ANY_TEXT, ANY_TEXT)
def test_figures_named_by_any_text_are_logged_and_tracked(text: str, reason: str) -> None:
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder), "run")
        run.append_step(report_of(text, reason))
        run.append_evaluation(1, evaluation_of(text, reason))
        (step,) = read_metrics(run.metrics)
        assert step.metrics["invalid"] == 0.5
        assert run.evaluations.read_bytes().count(b"\n") == 1
        sink = _Remembering(Path(folder))
        with Trackers([sink], said.append) as trackers:
            trackers.start()
            trackers.step(report_of(text, reason))
            trackers.evaluation(1, evaluation_of(text, reason))
    assert len(said) == 1, said
    assert any(name.startswith("reward/") for name in sink.names)
