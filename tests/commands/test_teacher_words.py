"""What teachers said, kept with a run: read back, shown on its page, refused where it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnpoint as tp
from tests.recipe import write_tiny_recipe
from tests.reports.pages import blobs, tokens
from tests.teachers import folders
from tests.typed import Command, is_one_line
from turnpoint.reports.page.group import TEACHER
from turnpoint.reports.teacher_words import read_said
from turnpoint.rollout import read_groups

OPTIONS = ["sampling.max_new_tokens=12", "evaluation=null", "training.save_every=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    recipe = write_tiny_recipe(folder / "recipe.yaml", model=tiny_folder)
    teacher = f"distill.teachers.big.path={folders.plain(folder / 'plain')}"
    return tp.train(tp.load_recipe(recipe, [*OPTIONS, teacher])).folder


def test_the_page_shows_d_of_every_token_and_whose_it_is(
    turnpoint: Command, run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert turnpoint("report", run, "--out", page).status == 0
    said, groups = read_said(run / "teachers.jsonl"), list(read_groups(run / "rollouts.jsonl"))
    assert set(said) == {group.id for group in groups}
    for row, group in enumerate(groups):
        assert said[group.id].teacher == "big"
        texts, (_, members) = json.loads(blobs(page)[f"texts-{row}"]), tokens(page, row)
        assert texts["teacher"] == "big"
        for index, member in enumerate(members):
            (segment,) = group.generated(index)
            assert segment.logprobs is not None
            gaps = said[group.id].logprobs[segment.id].astype(float) - segment.logprobs
            np.testing.assert_allclose(member[TEACHER], gaps, rtol=0.03, atol=0.02)
            assert texts["members"][index]["d"] == pytest.approx(gaps.mean(), rel=1e-4)


def test_the_figures_of_the_first_step_hold_the_calibration(run: Path) -> None:
    first, second = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert first["metrics"]["teacher/calibration"]["value"] < 1e-5
    assert "teacher/calibration" not in second["metrics"]
    assert [it["rule"] for it in first["findings"] if it["rule"].startswith("teacher")] == [
        "teacher template"
    ]


def test_a_run_that_goes_on_says_the_same_again(run: Path, tmp_path: Path) -> None:
    whole = (run / "teachers.jsonl").read_bytes()
    last = run / "checkpoints" / "step-00000002"
    aside = last.rename(tmp_path / "aside")
    tp.resume(run)
    assert (run / "teachers.jsonl").read_bytes() == whole
    assert aside.exists()


def first_line(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        first, rest = text.split("\n", 1)
        row = json.loads(first)
        change(row)
        return json.dumps(row) + "\n" + rest

    return edit


def with_garbage(text: str) -> str:
    return "no word\n" + text


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (with_garbage, "teachers.jsonl, line 1 is no teacher's word: not JSON"),
        (first_line(lambda row: row.pop("teacher")), ".teacher is missing"),
        (first_line(lambda row: row["logprobs"].update({"1": 3})), ".logprobs.1 = 3: should be base64"),
        (first_line(lambda row: row["logprobs"].update({"x": ""})), ".logprobs has 'x', which is no segment"),
        (
            first_line(lambda row: row["logprobs"].update({"1": ""})),
            "0 log-probabilities of segment 1, and it has 12 tokens in rollouts.jsonl",
        ),
        (first_line(lambda row: row["logprobs"].update({"99": ""})), "segment 99, and there is none"),
    ],
)
def test_what_does_not_fit_is_one_line(
    turnpoint: Command, run: Path, tmp_path: Path, edit: Callable[[str], str], words: str
) -> None:
    path = run / "teachers.jsonl"
    whole = path.read_text()
    try:
        path.write_text(edit(whole))
        assert is_one_line(turnpoint("report", run, "--out", tmp_path / "page.html"), words)
    finally:
        path.write_text(whole)


def test_a_torn_end_is_left_out_and_without_the_file_nothing_is_shown(
    turnpoint: Command, run: Path, tmp_path: Path
) -> None:
    path, page = run / "teachers.jsonl", tmp_path / "page.html"
    whole = path.read_text()
    try:
        path.write_text(whole[:-20])
        assert "the last, is torn; skipped" in turnpoint("report", run, "--out", page).out
        path.unlink()
        assert turnpoint("report", run, "--out", page).status == 0
        assert TEACHER not in tokens(page, 0)[1][0]
        assert json.loads(blobs(page)["texts-0"])["teacher"] is None
    finally:
        path.write_text(whole)


def test_one_problem_is_inspected_with_its_teacher(turnpoint: Command, run: Path, tmp_path: Path) -> None:
    answer = turnpoint("inspect", run / "recipe.yaml", "--out", tmp_path / "page.html")
    assert answer.status == 0, answer.err
    assert answer.out.count("  big: -") == 4
    assert tokens(tmp_path / "page.html", 0)[1][0][TEACHER].min() < -0.5
