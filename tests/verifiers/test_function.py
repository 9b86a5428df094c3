"""Functions of the user: what counts as a reward, and every way of failing to give one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnpoint.errors import RecipeError
from turnpoint.types import Message, Task, Verdict
from turnpoint.verifiers import FunctionVerifier
from turnpoint.verifiers.function import source_file

SOURCE = '''
import os, sys, time
from helper import THREE

def judge(completion, task):
    """Does what the completion names."""
    return DEEDS[completion](task)

def hang(task):
    while True: pass

def grow(task):
    blocks = []
    while True: blocks.append(bytearray(1 << 26))

def fail(task):
    raise KeyError("no such key")

DEEDS = {
    "one": lambda task: 1,
    "half": lambda task: 0.5,
    "minus": lambda task: -2.0,
    "true": lambda task: True,
    "pair": lambda task: (0.25, "look again"),
    "helper": lambda task: THREE,
    "task": lambda task: (task.answer, task.metadata["level"], task.question) == ("7", 3, "3 + 4 ="),
    "torch": lambda task: float("torch" in sys.modules),
    "none": lambda task: None,
    "nan": lambda task: float("nan"),
    "inf": lambda task: float("-inf"),
    "huge": lambda task: -1e10,
    "text": lambda task: "1",
    "list": lambda task: [1.0],
    "triple": lambda task: (1.0, "a", "b"),
    "pair of nan": lambda task: (float("nan"), "x"),
    "pair without text": lambda task: (1.0, None),
    "raise": fail,
    "hang": hang,
    "grow": grow,
    "exit": lambda task: os._exit(0),
    "sys.exit": lambda task: sys.exit(0),
}
'''
TASK = Task(
    id="sum/0", messages=(Message(role="user", content="3 + 4 ="),), answer="7", metadata={"level": 3}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "rewards.py").write_text(SOURCE)
    (folder / "helper.py").write_text("THREE = 3\n")
    return folder


@pytest.fixture(scope="module")
def verifier(folder: Path) -> Iterator[FunctionVerifier]:
    with FunctionVerifier(f"{folder}/rewards.py:judge", timeout=1.0, memory_bytes=1 << 30) as shared:
        yield shared


@pytest.mark.parametrize(
    ("deed", "reward", "feedback"),
    [
        ("one", 1.0, ""),
        ("half", 0.5, ""),
        ("minus", -2.0, ""),
        ("true", 1.0, ""),
        ("pair", 0.25, "look again"),
        ("helper", 3.0, ""),
        ("task", 1.0, ""),
        ("torch", 0.0, ""),
    ],
)
def test_rewards(verifier: FunctionVerifier, deed: str, reward: float, feedback: str) -> None:
    verdict = verifier.grade(task=TASK, completion=deed)
    assert (verdict.valid, verdict.reward, verdict.feedback) == (True, reward, feedback)


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("none", "returned None"),
        ("nan", "returned nan"),
        ("inf", "returned -inf"),
        ("huge", "returned -10000000000.0, beyond"),
        ("text", "returned '1'"),
        ("list", r"returned [1.0]"),
        ("triple", "returned (1.0, 'a', 'b')"),
        ("pair of nan", "returned (nan, 'x')"),
        ("pair without text", "returned (1.0, None)"),
        ("raise", "KeyError: 'no such key'"),
        ("hang", "timed out after 1 s"),
        ("grow", "more memory than allowed"),
        ("exit", "worker exited with status 0"),
        ("sys.exit", "worker exited with status 0"),
    ],
)
def test_what_is_no_reward_is_invalid_and_never_zero(
    verifier: FunctionVerifier, deed: str, reason: str
) -> None:
    if deed == "grow":
        with FunctionVerifier(verifier._path, timeout=30.0, memory_bytes=1 << 30, workers=1) as patient:  # type: ignore[reportPrivateUsage]
            verdict = patient.grade(task=TASK, completion=deed)
    else:
        verdict = verifier.grade(task=TASK, completion=deed)
    assert (verdict.valid, verdict.reward) == (False, None)
    assert reason in verdict.reason
    assert "\n" not in verdict.reason


def test_three_hanging_among_a_hundred_good_ones(verifier: FunctionVerifier) -> None:
    async def scenario() -> list[Verdict]:
        return await asyncio.gather(*(verifier.verify(TASK, deed) for deed in ["hang"] * 3 + ["one"] * 100))

    verdicts = asyncio.run(scenario())
    assert [verdict.valid for verdict in verdicts] == [False] * 3 + [True] * 100


def test_kill_9_between_calls(verifier: FunctionVerifier) -> None:
    for pid in verifier._pool.pids():  # type: ignore[reportPrivateUsage]
        os.kill(pid, signal.SIGKILL)
    verdicts = [verifier.grade(task=TASK, completion="one") for _ in range(4)]
    assert verdicts[-1].reward == 1.0


def test_the_self_check_only_asks_that_the_function_runs(folder: Path) -> None:
    (folder / "length.py").write_text("def judge(completion, task):\n    return len(completion) - 1\n")
    (folder / "fails.py").write_text("def judge(completion, task):\n    return 1 / (len(completion) - 1)\n")
    with (
        FunctionVerifier(f"{folder}/length.py:judge") as good,
        FunctionVerifier(f"{folder}/fails.py:judge") as bad,
    ):
        assert asyncio.run(good.self_check(TASK)).reward == 0.0
        assert "ZeroDivisionError" in asyncio.run(bad.self_check(TASK)).reason


def test_a_module_path() -> None:
    with FunctionVerifier("tests.verifiers.rewards:word_count") as verifier:
        assert verifier.grade(task=TASK, completion="a b c").reward == 3.0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rewards.py", "expected file.py:function or package.module:function"),
        (":judge", "expected file.py:function"),
        ("nowhere.py:judge", "there is no file nowhere.py"),
        ("no/module:judge", "neither a .py file nor a module name"),
        ("tests.no_such_module:judge", "ModuleNotFoundError"),
        ("tests.verifiers.rewards:no_such_function", "has no function no_such_function"),
        ("{folder}/broken.py:judge", "SyntaxError"),
        ("{folder}/imports.py:judge", "No module named 'surely_not_installed'"),
    ],
)
def test_a_function_that_is_not_there_is_refused_at_construction_in_one_line(
    folder: Path, path: str, message: str
) -> None:
    (folder / "broken.py").write_text("def judge(:\n")
    (folder / "imports.py").write_text("import surely_not_installed\n")
    with pytest.raises(RecipeError) as caught:
        FunctionVerifier(path.format(folder=folder))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_file_of_a_function_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judges").mkdir()
    for name in ("judges/__init__.py", "judges/sums.py", "alone.py"):
        (tmp_path / name).write_text("raise RuntimeError('imported')\n")
    assert source_file("rewards/x.py:reward") == Path("rewards/x.py")
    assert source_file("alone:reward") == Path("alone.py")
    assert source_file("judges:reward") == Path("judges/__init__.py")
    assert source_file("judges.sums:reward") == Path("judges/sums.py")
    assert source_file("installed.elsewhere:reward") is None
