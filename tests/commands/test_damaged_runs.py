"""Run folders that somebody has edited: a page, or one line that names what is wrong, and no traceback."""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
from collections.abc import Iterator
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
from tests.typed import Answer, Command, is_one_line
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
    "", "x", "7", "nan", "\ud800", "<b>", "A" * 5, [], [None], [-1], [0, 0], {}, {"": 0}, {"x": math.nan}, {"\ud800": []},
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
    return list(value) if isinstance(value, dict) else list(range(len(value)))


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
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
            assert is_one_line(said, f"{path}, line ")
    finally:
        path.write_bytes(whole)
