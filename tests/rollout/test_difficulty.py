"""Pass rates: what counts, what is left out, and a file that outlives whoever writes it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.disk import file_size_limit
from tests.rollout.test_rollouter import HasB, Letters
from turnpoint.engine.fake import FakeEngine
from turnpoint.errors import EngineError, RunFolderError
from turnpoint.protocols import Verifier
from turnpoint.rollout.difficulty import PassRate, RatesFile, judge_tasks, pass_rate
from turnpoint.rollout.rollouter import Rollouter
from turnpoint.types import Author, FinishReason, Group, Member, Message, Task, TreeBuilder, Verdict

TASKS = [Task(id=f"t/{text}", messages=(Message(role="user", content=text),), answer="b") for text in "abcde"]
DEPENDS_ON = {"model": "tiny", "sampling": {"temperature": 1.0, "stop": ["x"]}, "samples": 4}


def rollouter(engine: FakeEngine, samples: int = 4) -> Rollouter:
    verifier: Verifier = HasB()
    return Rollouter(
        engine, Letters(), verifier, samples_per_prompt=samples, temperature=1.0, max_new_tokens=6, seed=0
    )


def group_of(*verdicts: Verdict) -> Group:
    tree = TreeBuilder()
    prompt = tree.append(author=Author.PROMPT, token_ids=[1])
    leaves = [
        tree.append(parent=prompt, author=Author.POLICY, token_ids=[2], logprobs=[0.0], policy_version=0)
        for _ in verdicts
    ]
    members = tuple(
        Member(leaf=leaf, segments=(leaf,), text="", verdict=verdict, finish=FinishReason.STOP)
        for leaf, verdict in zip(leaves, verdicts, strict=True)
    )
    return Group(id="g", task=TASKS[0], tree=tree.freeze(), members=members)


def judge(tasks: list[Task], engine: FakeEngine, *, at_once: int = 3) -> dict[str, PassRate]:
    rates: dict[str, PassRate] = {}

    def finished(rate: PassRate, tokens: int) -> None:
        assert tokens > 0
        rates[rate.task_id] = rate

    asyncio.run(judge_tasks(tasks, rollouter(engine), at_once=at_once, finished=finished))
    return rates


def test_a_reward_above_a_half_passes_and_invalid_ones_do_not_count() -> None:
    rewards = [Verdict.scored(reward) for reward in (1.0, 0.51, 0.5, 0.0, -1.0)]
    rate = pass_rate(group_of(*rewards, Verdict.invalid("timed out"), Verdict.invalid("timed out")))
    assert (rate.passed, rate.valid, rate.rate) == (2, 5, 0.4)
    assert rate.invalid == {"timed out": 2}


def test_without_a_valid_rollout_there_is_no_rate() -> None:
    assert pass_rate(group_of(Verdict.invalid("x"))).rate is None


def test_a_rate_depends_on_its_problem_alone() -> None:
    together = judge(TASKS, FakeEngine())
    assert len(together) == len(TASKS)
    assert together == judge(TASKS[::-1], FakeEngine(), at_once=1)
    for task in TASKS:
        assert judge([task], FakeEngine()) == {task.id: together[task.id]}


def test_no_more_than_asked_are_in_flight() -> None:
    engine = FakeEngine(delays={f"filter/t/a/{index}": 0.2 for index in range(4)})
    judge(TASKS, engine, at_once=1)
    groups = [name.split("/")[2] for name in engine.started]
    assert groups == sorted(groups)  # the slow first group was waited for


def test_when_one_fails_the_others_are_cancelled_and_those_done_are_kept() -> None:
    engine = FakeEngine(failing={"filter/t/e/0"})
    rates: list[PassRate] = []
    with pytest.raises(EngineError):
        asyncio.run(
            judge_tasks(TASKS, rollouter(engine), at_once=1, finished=lambda rate, tokens: rates.append(rate))
        )
    assert [rate.task_id for rate in rates] == ["t/a", "t/b", "t/c", "t/d"]
    assert not engine.running


# --- the file -----------------------------------------------------------------------------------


RATES = [
    PassRate(task_id="t/a", passed=1, valid=4),
    PassRate(task_id="t/b", passed=0, valid=3, invalid={"timed out": 1}),
]
THIRD = PassRate(task_id="t/c", passed=4, valid=4)


def written(path: Path) -> Path:
    with RatesFile(path, DEPENDS_ON) as file:
        for rate in RATES:
            file.append(rate)
            assert json.loads(path.read_text().splitlines()[-1])["task"] == rate.task_id  # at once
    return path


def known(path: Path) -> list[PassRate]:
    with RatesFile(path, DEPENDS_ON) as file:
        return list(file.known.values())


def test_rates_come_back(tmp_path: Path) -> None:
    path = written(tmp_path / "rates")
    with RatesFile(path, DEPENDS_ON) as again:
        assert list(again.known.values()) == RATES
        again.append(THIRD)
    assert known(path) == [*RATES, THIRD]


def test_without_a_rate_no_file_is_left(tmp_path: Path) -> None:
    with RatesFile(tmp_path / "rates", DEPENDS_ON):
        pass
    assert not list(tmp_path.iterdir())


def test_two_cannot_write_to_one(tmp_path: Path) -> None:
    path = written(tmp_path / "rates")
    before = path.read_bytes()
    with RatesFile(path, DEPENDS_ON), pytest.raises(RunFolderError, match="another turnpoint filter writes"):
        RatesFile(path, DEPENDS_ON)
    assert path.read_bytes() == before


def test_a_full_disk_keeps_the_rates_so_far(tmp_path: Path) -> None:
    path = written(tmp_path / "rates")
    with (
        RatesFile(path, DEPENDS_ON) as file,
        file_size_limit(path.stat().st_size + 5),
        pytest.raises(RunFolderError, match="rates: File too large"),
    ):
        file.append(THIRD)
    assert known(path) == RATES


@pytest.mark.parametrize("torn", ['{"task": "t/c", "pas', "{", "\x00"])
def test_a_torn_last_line_is_removed(tmp_path: Path, torn: str) -> None:
    path = written(tmp_path / "rates")
    whole = path.read_text()
    path.write_text(whole + torn)
    with RatesFile(path, DEPENDS_ON) as file:
        assert path.read_text() == whole
        file.append(THIRD)
    assert known(path) == [*RATES, THIRD]


@pytest.mark.parametrize("length", [0, 1, 22])
def test_an_empty_file_and_a_torn_header_hold_no_rates_yet(tmp_path: Path, length: int) -> None:
    path = written(tmp_path / "rates")
    path.write_bytes(path.read_bytes()[:length])
    assert not RatesFile.begun(path)
    with RatesFile(path, DEPENDS_ON) as file:
        file.append(RATES[0])
    assert RatesFile.begun(path)
    assert known(path) == RATES[:1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"samples": 8}, "samples = 4, and now it is 8"),
        ({"model": "large"}, 'model = "tiny", and now it is "large"'),
        ({"sampling": {"temperature": 0.7, "stop": ["x"]}}, "sampling = {"),
        ({"new": 1}, "new = null, and now it is 1"),
    ],
)
def test_rates_of_something_else_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = written(tmp_path / "rates")
    before = path.read_bytes()
    with pytest.raises(RunFolderError, match="delete it, or choose another output") as caught:
        RatesFile(path, {**DEPENDS_ON, **change})  # type: ignore[dict-item]
    assert words in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["hello\n", "hello", "hello\nworld", "[1]\n", '{"a": 1}\n', '{"turnpoint": "x", "depends_on": {}}\n'],
)
def test_a_file_of_someone_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rates"
    path.write_text(content)
    with pytest.raises(RunFolderError, match="holds no pass rates"):
        RatesFile(path, DEPENDS_ON)
    assert path.read_text() == content


@pytest.mark.parametrize(
    "row",
    [
        '{"task": "t/c"}',
        '{"task": 7, "passed": 1, "valid": 4, "invalid": {}}',
        '{"task": "t/c", "passed": "1", "valid": 4, "invalid": {}}',
        '{"task": "t/c", "passed": 5, "valid": 4, "invalid": {}}',
        '{"task": "t/c", "passed": -1, "valid": 4, "invalid": {}}',
        "[]",
        "hello",
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path: Path, row: str) -> None:
    path = written(tmp_path / "rates")
    path.write_text(f"{path.read_text()}{row}\n")
    with pytest.raises(RunFolderError, match="line 4: no pass rate"):
        RatesFile(path, DEPENDS_ON)
