"""`turnpoint report`: every kind of run folder is a page or one clear line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import turnpoint as tp
from tests.disk import file_size_limit
from tests.reports.pages import blobs, overview
from tests.tiny import save_tiny_model
from tests.typed import Command, is_one_line


@pytest.fixture
def run(recipe: Path) -> Path:
    return tp.train(tp.load_recipe(recipe)).folder


def test_a_run_is_a_page(turnpoint: Command, run: Path) -> None:
    answer = turnpoint("report", run)
    assert answer.status == 0, answer.err
    assert "report.html: 8 groups, 32 rollouts, 0." in answer.out
    page = overview(run / "report.html")
    assert page["name"] == "tiny"
    assert [it["step"] for it in page["evaluations"]] == [0, 2]
    assert page["curves"]["steps"] == [1, 2]
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = [step["metrics"]["tokens/root"]["value"] for step in steps]
    assert page["curves"]["tokens"] == [tokens[0], sum(tokens)]
    rewards = [step["metrics"]["reward"]["value"] for step in steps]
    assert [value for _, value in page["curves"]["figures"]["reward"]] == pytest.approx(rewards, rel=1e-5)
    assert any("change" in it["text"] for it in page["findings"])
    assert page["notes"] == []
    assert {row["step"] for row in page["groups"]} == {1, 2}
    assert all(text is not None for text in page["vocabulary"]["texts"])
    assert len([name for name in blobs(run / "report.html") if name.startswith("tokens-")]) == 8


def test_a_run_that_goes_on_with_a_torn_line(turnpoint: Command, run: Path, tmp_path: Path) -> None:
    for name in ("rollouts.jsonl", "metrics.jsonl"):
        lines = (run / name).read_bytes()
        (run / name).write_bytes(lines[: len(lines) - 20])
    out = tmp_path / "elsewhere.html"
    answer = turnpoint("report", run, "--out", out)
    assert answer.status == 0, answer.err
    assert "the last, is torn; skipped" in answer.out
    page = overview(out)
    assert len(page["groups"]) == 7
    assert "1 of 2 steps; stopped, or still going" in json.dumps(page["facts"])
    assert "is torn" in page["notes"][0]
    assert not (run / "report.html").exists()


def test_without_its_tokenizer_tokens_are_ids(turnpoint: Command, recipe: Path, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "gone")
    run = tp.train(tp.load_recipe(recipe, [f"model.path={model}", "evaluation=null"])).folder
    shutil.rmtree(model)
    answer = turnpoint("report", run)
    assert answer.status == 0, answer.err
    assert "tokens are shown by their ids" in answer.out
    page = overview(run / "report.html")
    assert page["vocabulary"]["texts"] is None
    assert "tokens are shown by their ids" in page["notes"][0]


def test_a_run_without_rollouts(turnpoint: Command, run: Path) -> None:
    (run / "rollouts.jsonl").unlink()
    answer = turnpoint("report", run)
    assert answer.status == 0
    note = f"no groups of steps 1 to 2 to show: {run / 'rollouts.jsonl'} is not there"
    assert note in answer.out
    page = overview(run / "report.html")
    assert page["groups"] == []
    assert page["notes"] == [note]


def test_groups_that_were_deleted_before_the_run_went_on(turnpoint: Command, run: Path) -> None:
    (run / "rollouts.jsonl").unlink()
    assert turnpoint("train", run, "training.steps=3").status == 0
    answer = turnpoint("report", run)
    assert answer.status == 0
    note = f"no groups of steps 1 to 2 to show: {run / 'rollouts.jsonl'} holds none of theirs"
    assert note in answer.out
    page = overview(run / "report.html")
    assert {row["step"] for row in page["groups"]} == {3}
    assert page["notes"] == [note]


def test_supervised_fine_tuning_is_a_page(turnpoint: Command, recipe: Path, tiny_folder: Path) -> None:
    folder = recipe.parent
    rows = [{"question": f"{a}", "answer": str(a), "work": f"{a}{a}"} for a in range(8)]
    (folder / "solved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sft.yaml").write_text(
        f"name: cold\noutput_dir: {folder}/runs\nmodel: {{path: {tiny_folder}, dtype: float32}}\n"
        f"tasks: {{kind: jsonl, path: {folder}/solved.jsonl}}\nsolution: work\nheld_out: 2\n"
        f"training: {{examples_per_step: 2}}\n"
    )
    result = tp.sft(tp.load_sft_recipe(folder / "sft.yaml"))
    assert turnpoint("report", result.folder).status == 0
    page = overview(result.folder / "report.html")
    assert len(page["curves"]["figures"]["held-out cross-entropy"]) == 2
    assert len(page["curves"]["figures"]["cross_entropy"]) == len(page["curves"]["steps"])
    assert any("held-out cross-entropy" in it["text"] for it in page["findings"])


def test_what_is_no_run_is_one_line(turnpoint: Command, run: Path, tmp_path: Path) -> None:
    assert is_one_line(turnpoint("report", tmp_path / "none"), "is no run folder: it is not there")
    (tmp_path / "empty").mkdir()
    assert is_one_line(turnpoint("report", tmp_path / "empty"), "holds no recipe.yaml")
    shutil.copy(run / "recipe.yaml", tmp_path / "empty")
    assert is_one_line(turnpoint("report", tmp_path / "empty"), "nothing to show yet")
    assert is_one_line(turnpoint("report", run, "--out", tmp_path / "no" / "x.html"), "cannot write the page")
    for place in (tmp_path, run / "rollouts.jsonl", run / "recipe.yaml", Path("/dev/null")):
        before = place.read_bytes() if place.is_file() else b""
        assert is_one_line(turnpoint("report", run, "--out", place), "exists and is no page of turnpoint")
        assert before == (place.read_bytes() if place.is_file() else b"")
    assert turnpoint("report", run).status == 0
    earlier = (run / "report.html").read_bytes()
    with file_size_limit(len(earlier) // 2):
        assert is_one_line(turnpoint("report", run), "cannot write the page: File too large")
    assert (run / "report.html").read_bytes() == earlier
    assert not list(run.glob(".report*"))
    assert turnpoint("report", run).status == 0  # an earlier page is replaced
    assert is_one_line(turnpoint("report", run / "recipe.yaml"), "it is a file")
    line = (run / "rollouts.jsonl").read_text()
    (run / "rollouts.jsonl").write_text(line.replace('"leaf":2', '"leaf":99'))
    assert is_one_line(turnpoint("report", run), "is no recorded group")
    (run / "rollouts.jsonl").write_text("no group\n")
    assert is_one_line(turnpoint("report", run), "rollouts.jsonl, line 1 is no recorded group: not JSON")
