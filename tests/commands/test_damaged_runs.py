"""Run folders that somebody has edited: a page, or one line that names what is wrong, and no traceback."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turnpoint as tp
from tests.recipe import write_tiny_recipe
from tests.reports.pages import overview
from tests.typed import Answer, is_one_line
from turnpoint import cli

FORKS = [
    "rollout.samples_per_prompt=6",
    "rollout.prompts_per_step=2",
    "rollout.branching={roots: 2, continuations: [2], min_gap: 2, rule: {kind: entropy}}",
    "sampling.max_new_tokens=12",
    "evaluation={tasks: 2, samples: 2}",
]
BIG = 10**400
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 7, 0.5, 2**31, 2**62, BIG, 1e308, -1e308, math.nan, math.inf, -math.inf,
    "", "x", "7", "nan", "\ud800", "<b>", "A" * 5,
    [], [None], [-1], [0, 0], {}, {"": 0}, {"x": math.nan}, {"\ud800": []},
]  # fmt: skip
ABSENT = object()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    recipe = write_tiny_recipe(folder / "recipe.yaml", model=tiny_folder)
    return tp.train(tp.load_recipe(recipe, FORKS)).folder


def answer(*arguments: str | Path) -> Answer:
    """The command in this process, as often as wanted within one test."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["turnpoint", *map(str, arguments)]
    with (
        patch.object(sys, "argv", argv),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    return Answer(status=int(end.value.code or 0), out=out.getvalue(), err=err.getvalue())


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def with_line(path: Path, number: int, line: bytes) -> bytes:
    """The content of `path` with line `number`, counted from 1, replaced."""
    kept = lines(path)
    kept[number - 1] = line
    return b"".join(kept)


def inside(value: Any) -> list[Any]:
    return [*value] if isinstance(value, dict) else [*range(len(value))]


@st.composite
def damaged(draw: st.DrawFn, tree: Any) -> Any:
    """`tree` with one leaf or subtree of it replaced or taken away."""
    root = [json.loads(json.dumps(tree))]
    above: Any = root
    key: Any = 0
    while isinstance(above[key], dict | list) and above[key] and draw(st.integers(0, 6)):
        above, key = above[key], draw(st.sampled_from(inside(above[key])))
    odd = draw(st.sampled_from([*ODD, ABSENT]))
    if odd is not ABSENT:
        above[key] = odd
    elif above is not root:
        del above[key]
    return root[0]


@pytest.mark.parametrize("name", ["rollouts.jsonl", "metrics.jsonl", "evaluations.jsonl"])
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_one_odd_value_in_a_line(run: Path, name: str, data: st.DataObject) -> None:
    path = run / name
    whole = path.read_bytes()
    number = data.draw(st.integers(1, len(lines(path))))
    tree = data.draw(damaged(json.loads(lines(path)[number - 1])))
    try:
        path.write_bytes(with_line(path, number, json.dumps(tree).encode() + b"\n"))
        said = answer("report", run)
        if said.status == 0:
            assert said.err == ""
            assert overview(run / "report.html")["name"] == "tiny"
        else:
            assert is_one_line(said, f"{path}, line {number} is no ") or ".step = " in said.err
    finally:
        path.write_bytes(whole)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_one_odd_value_in_what_a_run_began_with(run: Path, data: st.DataObject) -> None:
    path = run / "origin.json"
    whole = path.read_bytes()
    tree = data.draw(damaged(json.loads(whole)))
    try:
        path.write_text(json.dumps(tree))
        said = answer("train", run)  # complete: it loads no model
        assert said.status in (0, 2)
        assert said.err.count("\n") == said.status // 2
        if f"{path}: " not in said.err:  # a sound recipe, but another one
            assert said.status == 0 or "a run that goes on keeps its recipe" in said.err
    finally:
        path.write_bytes(whole)


def edited(run: Path, name: str, number: int, edit: Callable[[Any], None]) -> Answer:
    """What is said of a run in which `edit` has changed line `number` of file `name`."""
    path = run / name
    whole = path.read_bytes()
    row = json.loads(lines(path)[number - 1])
    edit(row)
    try:
        path.write_bytes(with_line(path, number, json.dumps(row).encode() + b"\n"))
        return answer("report", run)
    finally:
        path.write_bytes(whole)


def setting(*place: str | int, to: Any) -> Callable[[Any], None]:
    def edit(row: Any) -> None:
        for key in place[:-1]:
            row = row[key]
        row[place[-1]] = to

    return edit


ROLLOUTS = [
    (setting("segments", 1, "token_ids", 0, to=-1), ".segments[1].token_ids[0] = -1: should be greater"),
    (setting("segments", 1, "token_ids", 0, to=2**31), "token_ids[0] = 2147483648: should be less than"),
    (setting("segments", 2, "parent", to=99), "segment 2: parent 99 does not come before it"),
    (setting("segments", 2, "parent", to=2), "segment 2: parent 2 does not come before it"),
    (setting("members", 0, "text", to=3), ".members[0].text = 3: should be a valid string"),
    (setting("members", 0, "reason", to=None), ".members[0].reason = null: should be a valid string"),
    (setting("members", 0, "finish", to=["stop"]), ".members[0].finish = [\"stop\"]: should be 'stop'"),
    (setting("members", 0, "parts", to=[1]), ".members[0].parts = [1]: should be an object"),
    (setting("members", 0, "valid", to=None), ".members[0].valid = null: should be a valid boolean"),
    (setting("members", 0, "reward", to=math.nan), ".members[0].reward = NaN: should be a finite number"),
    (setting("members", 0, "reward", to=BIG), ".members[0].reward = 1000"),
    (setting("members", 0, "reward", to="1"), '.members[0].reward = "1": should be a valid number'),
    (setting("members", 2, "origin", "score", to=BIG), ".members[2].origin.score = 1000"),
    (setting("members", 2, "origin", "position", to=50), ".members[2].origin.position = 50: beyond the "),
    (setting("members", 2, "origin", "root", to=2), "member 2 branches from 2, which does not come"),
    (setting("members", 0, "insight", "quantities", "entropy", to="AACAPw=="), ".entropy: 1 values for "),
    (setting("task", "messages", to=[]), ".task.messages = []: List should have at least 1 item"),
    (setting("task", "messages", 0, "role", to="robot"), '.role = "robot": should be \'system\', \'user\''),
    (setting("id", to=7), ".id = 7: should be a valid string"),
]  # fmt: skip
METRICS = [
    (setting("wall_seconds", to="long"), '.wall_seconds = "long": should be a valid number'),
    (setting("wall_seconds", to=-1), ".wall_seconds = -1: should be greater than or equal to 0"),
    (setting("metrics", "reward", to={"value": {"value": 1}}), '.metrics.reward.value = {"value": 1}: '),
    (setting("metrics", to=[]), ".metrics = []: should be an object"),
    (setting("step", to=-2), ".step = -2: should be greater than or equal to 0"),
    (setting("step", to=1), ".step = 1: the line before has step 1"),
    (setting("step", to=BIG), ".step = 1000"),
]  # fmt: skip
EVALUATIONS = [
    (setting("outcomes", 0, "greedy", "tokens", to=math.nan), ".outcomes[0].greedy.tokens = NaN: should be"),
    (setting("outcomes", 0, "greedy", "reward", to=None), ".outcomes[0].greedy: a valid verdict needs"),
    (setting("outcomes", 0, "sampled", to=[]), ".outcomes[0].sampled: 0 attempts, expected 2"),
    (setting("outcomes", to=[]), ".outcomes = []: List should have at least 1 item"),
    (setting("step", to=0), ".step = 0: the line before has step 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        *(("rollouts.jsonl", *each) for each in ROLLOUTS),
        *(("metrics.jsonl", *each) for each in METRICS),
        *(("evaluations.jsonl", *each) for each in EVALUATIONS),
    ],
)
def test_what_is_wrong_is_named(run: Path, name: str, edit: Callable[[Any], None], what: str) -> None:
    said = edited(run, name, 2, edit)
    assert is_one_line(said, f"{run / name}, line 2 is no ")
    assert what in said.err


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("rollouts.jsonl", setting("segments", 1, "token_ids", 0, to=2**31 - 1)),
        ("rollouts.jsonl", setting("members", 0, "reward", to=1e308)),
        ("rollouts.jsonl", setting("members", 2, "origin", "score", to=math.nan)),
        ("rollouts.jsonl", setting("members", 0, "parts", to={"form": math.inf})),
        ("rollouts.jsonl", setting("id", to="9" * 5000 + "/0")),
        ("metrics.jsonl", setting("metrics", "tokens/root", "value", to="nan")),
        ("metrics.jsonl", setting("metrics", "entropy", "value", to="-inf")),
        ("evaluations.jsonl", setting("outcomes", 0, "greedy", "reward", to=-1e308)),
    ],
)
def test_what_is_odd_and_possible_is_shown(run: Path, name: str, edit: Callable[[Any], None]) -> None:
    said = edited(run, name, 2, edit)
    assert (said.status, said.err) == (0, "")
    assert "!" not in said.out
    assert overview(run / "report.html")["notes"] == []


def test_garbage_is_not_called_torn_and_a_torn_line_is_said(run: Path) -> None:
    for name in ("rollouts.jsonl", "metrics.jsonl", "evaluations.jsonl"):
        path = run / name
        whole = path.read_bytes()
        count = len(lines(path))
        try:
            for garbage in (b"\x89PNG\r", b"not a line"):
                path.write_bytes(whole + garbage)
                assert is_one_line(answer("report", run), f"{path}, line {count + 1} is no ")
                path.write_bytes(garbage + b"\n" + whole)
                assert is_one_line(answer("report", run), f"{path}, line 1 is no ")
            path.write_bytes(whole[:-9])
            said = answer("report", run)
            assert said.status == 0
            note = f"{path}, line {count}, the last, is torn; skipped"
            assert note in said.out
            assert note in overview(run / "report.html")["notes"]
        finally:
            path.write_bytes(whole)
