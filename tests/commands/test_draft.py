"""`turnpoint draft` makes heads from a run, and a run that uses them stops and goes on as the same run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml

import turnpoint as tp
from tests.conftest import Command
from tests.runs import assert_same_run, rows
from turnpoint.commands.draft_report import entropy_slope
from turnpoint.config.drafting import DraftLoss
from turnpoint.config.speculation import MOST_DEPTH
from turnpoint.drafting.losses import DraftLossName
from turnpoint.drafting.measure import Measured, TextFigures
from turnpoint.errors import RecipeError, UserError
from turnpoint.models.mtp_layout import MAX_DEPTH
from turnpoint.reports.draft_facts import read_facts
from turnpoint.reports.run_log import RunFolder

POINTS = [(0.2, 2.7), (0.4, 2.4), (1.0, 1.5)]  # nats, tokens per round: a line of slope -1.5


def write_draft_recipe(path: Path, *, model: Path, run: Path, **changes: Any) -> Path:
    tree: dict[str, Any] = {
        "model": {"path": str(model), "dtype": "float32"},
        "data": [{"kind": "run", "path": str(run)}],
        "output_dir": str(path.parent / "drafts"),
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 1},
        "training": {"steps": 6, "batch_tokens": 256},
        **changes,
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, stopped: Path) -> tp.DraftResult:
    folder = tmp_path_factory.mktemp("drafts")
    texts = folder / "texts.jsonl"
    turns = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "it is two"}]
    texts.write_text(f"{json.dumps({'text': 'so it goes on'})}\n{json.dumps({'messages': turns})}\n")
    data = [{"kind": "run", "path": str(stopped)}, {"kind": "jsonl", "path": str(texts)}]
    recipe = write_draft_recipe(folder / "draft.yaml", model=tiny_folder, run=stopped, data=data)
    return tp.draft(tp.load_draft_recipe(recipe))


def test_what_is_left(made: tp.DraftResult) -> None:
    assert {it.name for it in made.folder.iterdir()} == {
        "recipe.yaml",
        "draft.jsonl",
        "summary.json",
        "heads",
    }
    steps = rows(made.folder / "draft.jsonl")
    assert [it["step"] for it in steps] == [1, 2, 3, 4, 5, 6]
    assert [it["loss_name"] for it in steps].count("forward_kl") == 4
    summary = json.loads((made.folder / "summary.json").read_text())
    assert made.before is not None
    assert made.after is not None
    assert summary["after"]["acceptance"] == made.after.acceptance
    assert made.after.law_length > made.before.law_length
    assert tp.load_draft_recipe(made.folder / "recipe.yaml").training.steps == 6


def test_a_run_with_drafts_goes_on_as_the_same_run(recipe: Path, made: tp.DraftResult) -> None:
    drafts = [f"engine.draft={{heads: {made.heads}, depth: 2}}", "evaluation.every=2", "evaluation.samples=0"]
    whole = tp.train(tp.load_recipe(recipe, ["training.steps=4", "name=whole", *drafts])).folder
    part = tp.train(tp.load_recipe(recipe, ["training.steps=2", "name=part", *drafts])).folder
    tp.resume(part, ["training.steps=4"])
    assert_same_run(part, whole)
    for row in rows(whole / "metrics.jsonl"):
        figures = {name: it["value"] for name, it in row["metrics"].items()}
        assert 1 < figures["draft/accept_length"] <= 3
        assert figures["draft/drafted"] > 0
        assert figures["mismatch"] < 1e-4  # what is recorded is of the policy's law


def test_heads_learn_on(tmp_path: Path, tiny_folder: Path, stopped: Path, made: tp.DraftResult) -> None:
    recipe = write_draft_recipe(
        tmp_path / "on.yaml",
        model=tiny_folder,
        run=stopped,
        heads={"kind": "folder", "path": str(made.heads)},
        held_out=0,
        first=None,
        training={"steps": 1, "batch_tokens": 256},
        optimizer={"warmup_steps": 0},
    )
    assert tp.draft(tp.load_draft_recipe(recipe)).after is None


def test_a_report_from_ordinary_rollouts(stopped: Path, made: tp.DraftResult, turnpoint: Command) -> None:
    answer = turnpoint("draft", "--report", stopped, "--heads", made.heads, "--depth", "2", "--json")
    assert answer.status == 0
    found = json.loads(answer.out)
    assert len(found["acceptance"]) == len(found["accept_length"]) == 2
    assert 1 < found["accept_length"][0] < found["accept_length"][1] < 3
    assert found["entropy_slope"] is not None
    at_one = found["overlap_by_temperature"]["1"]
    assert at_one == pytest.approx(found["acceptance"]), "as warm as the policy, as measured without a sweep"
    assert max(map(max, found["overlap_by_temperature"].values())) > min(at_one)
    ahead, problems = found["problems_where_draws_accept_more"]
    assert 0 <= ahead <= problems
    assert problems > 1
    assert turnpoint("draft", "--report", stopped).status == 2
    assert turnpoint("report", stopped).status == 0
    kept = RunFolder(path=stopped).drafts
    sentences = read_facts(kept)
    assert sentences[1].startswith("tokens a round 1.")
    assert any("drawn at 0.7 of the policy's temperature" in it for it in sentences)
    assert any(f"on {ahead} of {problems} problems" in it for it in sentences)
    kept.write_text("{}")
    answer = turnpoint("report", stopped)
    assert answer.status == 2
    assert "turnpoint draft --report, or delete it" in answer.err
    kept.unlink()


def test_slope_by_hand() -> None:
    zeros = np.zeros(1)
    texts = [
        TextFigures(tokens=10, rounds=(10 / length,), entropy=10.0 * nats, ahead=nats - 0.7, group="one")
        for nats, length in POINTS
    ]
    measured = Measured(
        counts=zeros,
        overlaps=zeros,
        best=zeros,
        ahead=zeros,
        warmed=np.zeros((0, 1)),
        drift=0.0,
        recorded=0,
        texts=texts,
    )
    assert entropy_slope(measured) == pytest.approx(-1.5)
    assert measured.problems_ahead == (0, 1), "of one problem the sum counts: -0.5 - 0.3 + 0.3"
    apart = replace(measured, texts=[replace(it, group="") for it in texts])
    assert apart.problems_ahead == (1, 3), "texts without a group are each their own"
    assert entropy_slope(replace(measured, texts=texts[:1])) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depth": 9}, "takes 10 sampled tokens in a row"),
        ({"depth": 17}, "less than or equal to 16"),
        ({"los": "tv"}, "did you mean loss"),
        ({"data": []}, "name texts"),
        ({"data": [{"kind": "run", "path": "/nowhere"}]}, "no such recipe or run folder"),
        ({"data": [{"kind": "jsonl", "path": "/nowhere.jsonl"}]}, "cannot be read"),
        ({"heads": {"kind": "folder", "path": "/nowhere"}}, "there is no draft_heads.json"),
        ({"heads": {"kind": "checkpoint", "family": "mimo"}}, "holds no draft heads"),
        ({"temperature": 0.5, "loss": "pathwise_tv"}, "needs the law that sampled them"),
        ({"loss": "pathwise_tv"}, "sampled by another policy"),
        ({"optimizer": {"warmup_steps": 6}}, "leaves nothing of training.steps"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    tmp_path: Path, tiny_folder: Path, stopped: Path, turnpoint: Command, change: dict[str, Any], words: str
) -> None:
    recipe = write_draft_recipe(tmp_path / "bad.yaml", model=tiny_folder, run=stopped, **change)
    answer = turnpoint("draft", recipe)
    assert answer.status == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "drafts").exists()


def test_files_without_texts_are_refused(tmp_path: Path, tiny_folder: Path, stopped: Path) -> None:
    file = tmp_path / "texts.jsonl"
    recipe = write_draft_recipe(
        tmp_path / "r.yaml", model=tiny_folder, run=stopped, data=[{"kind": "jsonl", "path": str(file)}]
    )
    for content, words in (("", "holds no texts"), ('{"question": "x"}\n', "line 1 has neither text")):
        file.write_text(content)
        with pytest.raises(UserError, match=words):
            tp.draft(tp.load_draft_recipe(recipe))


@pytest.mark.parametrize("key", ["adaptive", "tempered"])
def test_a_deterministic_run_drafts_by_nothing_that_was_measured(key: str, recipe: Path) -> None:
    branching = "rollout.branching={roots: 2, continuations: [1], deterministic: true}"
    drafts = [f"engine.draft={{heads: x, {key}: true}}", branching]
    with pytest.raises(RecipeError, match=rf"take engine\.draft\.{key}=false"):
        tp.load_recipe(recipe, drafts)
    tp.load_recipe(recipe, [*drafts, f"engine.draft.{key}=false"])


def test_the_likeliest_token_has_no_temperature(recipe: Path) -> None:
    with pytest.raises(RecipeError, match=r"tempered = true with mode = target_only"):
        tp.load_recipe(recipe, ["engine.draft={heads: x, tempered: true, mode: target_only}"])


def test_recipes_name_what_there_is() -> None:
    assert MOST_DEPTH == MAX_DEPTH
    assert get_args(DraftLoss) == get_args(DraftLossName)
