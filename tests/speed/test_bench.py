"""`turnpoint bench` as it is typed, on a model whose shares mean nothing and whose arithmetic must hold."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import turnpoint as tp
from tests.typed import Command, is_one_line
from turnpoint.commands.bench import Sizes
from turnpoint.diagnosis.rows import Shape
from turnpoint.speed.figures import Figure, Measured, Phases, Report
from turnpoint.speed.machine import Machine
from turnpoint.speed.words import report_lines, verdict

SMALL = ("--prompts=2", "--samples=3", "--prompt-tokens=6", "--new-tokens=8", "--rounds=2", "--seconds=0.1")


@pytest.fixture(autouse=True)
def small_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of 1 MiB instead of 512."""
    monkeypatch.setattr("turnpoint.speed.ceilings._ARRAY", 1 << 20)


def test_a_model_by_its_folder_as_json(turnpoint: Command, tiny_folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    answer = turnpoint("bench", "--model", tiny_folder, *SMALL, "--json", "--profile", trace)
    assert answer.status == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert list(figures) == ["sample_one", "sample_batch", "prefill", "score", "train"]
    assert figures["sample_one"]["tokens"] == 8
    assert figures["sample_batch"]["tokens"] == 2 * 3 * 8
    for figure in figures.values():
        assert len(figure["rounds"]) == 2
        lower = min(figure["memory_ceiling"], figure["arithmetic_ceiling"])
        assert figure["share"] == pytest.approx(figure["tokens_per_second"] / lower)
    assert found["machine"]["cores"] >= 1
    assert set(found["phases"]["parts"]) >= {"attention", "linear layers", "head", "sampling"}
    assert min(found["phases"]["parts"].values()) >= 0
    assert min(found["phases"]["parts"][name] for name in ("attention", "linear layers", "head")) > 0
    assert found["phases"]["steps"] == 8 - 2
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "turnpoint/attention" in names


def test_a_recipe_gives_model_and_lengths(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("bench", recipe, "sampling.max_new_tokens=4", "--seconds=0.1", "--rounds=1")
    assert answer.status == 0, answer.err
    lines = answer.out.splitlines()
    (asked,) = [line for line in lines if line.startswith("  asked for")]
    assert "4 prompts of " in asked
    assert "x 4 samples of 4; 1 round" in asked
    assert [line for line in lines if line.startswith("  sample, the batch")]
    assert not (recipe.parent / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a recipe or --model NAME"),
        (("--model", "/no/such/model"), "/no/such/model"),
        (("/no/such/recipe.yaml",), "/no/such/recipe.yaml: no such recipe"),
        (("{recipe}", "--model", "{model}"), "not both"),
        (("--model", "{model}", "--new-tokens=1000", "--prompt-tokens=200"), "--new-tokens 56 is the most"),
        (("--model", "{model}", "--samples=0"), "--samples"),
        (("--model", "{model}", "--prompts=" + "9" * 30), "--prompts"),
        (("--model", "{model}", "--seconds=inf"), "--seconds"),
        (("--model", "{model}", "--threads=999999"), "--threads"),
        (("--model", "{model}", "--rounds=999999"), "--rounds"),
        (("--model", "{model}", "--profile=/no/such/folder/trace"), "/no/such/folder/trace"),
        (("--model", "{model}", "--profile={recipe}"), "it exists and is no trace"),
        (("--model", "{model}", "--profile=/dev/full"), "it exists and is no trace"),
        (
            (
                "--model",
                "{model}",
                "--prompts=1000",
                "--samples=1000000",
                "--prompt-tokens=8",
                "--new-tokens=8",
            ),
            "would fit",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    turnpoint: Command, recipe: Path, tiny_folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    typed = [it.format(recipe=recipe, model=tiny_folder) for it in arguments]
    before = recipe.read_bytes()
    answer = turnpoint("bench", *typed)
    assert is_one_line(answer, words), answer
    assert recipe.read_bytes() == before


def test_it_is_a_function_too(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One prompt, one sample, one token: nothing but the head runs, and there is no step to profile."""
    sizes = Sizes(prompts=1, samples=1, prompt_tokens=1, new_tokens=1)
    found = tp.bench(str(tiny_folder), sizes, rounds=1, seconds=0.0, threads=1)
    assert (found.machine.threads, found.phases) == (1, None)
    assert "sample, the batch" in capsys.readouterr().out
    assert tp.bench is not sys.modules.get("turnpoint.bench")


def figure(name: str, rate: float, *, memory: float, arithmetic: float) -> Figure:
    one = Measured(seconds=1000 / rate, arithmetic=1000 / arithmetic, memory=1000 / memory)
    return Figure(name=name, tokens=1000, rounds=(one,), detail="all")


def report() -> Report:
    return Report(
        model="some",
        parameters=134_500_000,
        machine=Machine(
            date="2026-11-30",
            processor="a processor",
            device="cpu",
            dtype="bfloat16",
            cores=2,
            threads=4,
            load=1.5,
            versions={"torch": "2"},
        ),
        shape=Shape(prompts=8, samples=16, prompt_tokens=250, new_tokens=250),
        rounds=1,
        seconds=1.0,
        bandwidth=2e10,
        flops=3e11,
        step_bytes=270e6,
        crossing=24.2,
        processor_share=0.5,
        workers=1,
        figures=(
            figure("sample_one", 50, memory=80, arithmetic=900),
            figure("sample_batch", 1000, memory=4000, arithmetic=2000),
            figure("prefill", 2000, memory=40_000, arithmetic=4000),
            figure("train", 340, memory=9000, arithmetic=680),
        ),
        phases=Phases(parts={"attention": 0.06, "head": 0.04}, steps=3),
        notes=("a note",),
    )


def test_the_verdict_in_words() -> None:
    assert verdict(report()) == [
        "decoding one sequence reads 270 MB a token and reaches 62 % of what memory allows; more samples "
        "cost little up to about 24 sequences, where arithmetic takes over",
        "the batch samples 20 times as many tokens a second and reaches 50 % of what arithmetic allows; "
        "most of a step's time goes to: attention, 60 %",
        # 2,000 prompt tokens at 2,000/s and 32,000 at 1,000/s; 34,000 at 340/s
        "a step with every rollout as long as allowed: about 33.0 s of sampling, 1 min 40 s of training",
    ]


def test_lines_for_people() -> None:
    lines = [line.plain for line in report_lines(report())]
    assert "  sample, 1 sequence          50         80         900    62 %  all" in lines
    assert "  a step of the batch, 100 ms profiled: attention 60 %, head 40 %" in lines
    told = [line for line in lines if line.startswith("  ! ")]
    assert told[0] == "  ! a note"
    assert "load 1.5 on 2 cores" in told[1]
    assert told[2:] == ["  ! 4 threads on 2 cores wait for each other"]
    alone = replace(report(), machine=replace(report().machine, threads=1, load=0.0), notes=())
    told = [line.plain for line in report_lines(alone) if line.plain.startswith("  ! ")]
    assert told == [
        "  ! this process got 50 % of the processor time that it asked for; the rest went to others"
    ]
