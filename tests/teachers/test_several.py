"""Runs with several teachers: experts with shares, their whole laws, and one of them in memory at a time."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

import turnpoint as tp
from tests.runs import state_bytes
from tests.teachers.test_run import figures
from tests.tiny import save_tiny_model
from turnpoint import distill
from turnpoint.errors import DataError, ModelError, RecipeError


@pytest.fixture(scope="session")
def far_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model once more, with other weights."""
    return save_tiny_model(tmp_path_factory.mktemp("far") / "tiny", seed=1)


@pytest.fixture
def experts(recipe: Path, far_folder: Path, tiny_folder: Path) -> list[str]:
    """Options of a run in which a third of the problems is taught by other weights, the rest by its own."""
    rows = [json.loads(line) for line in (recipe.parent / "sums.jsonl").read_text().splitlines()]
    marked = [{**row, "expert": "near" if index % 3 else "far"} for index, row in enumerate(rows)]
    (recipe.parent / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in marked))
    return [
        f"distill.teachers.near.path={tiny_folder}",
        f"distill.teachers.far.path={far_folder}",
        "distill.key=expert",
        "distill.task=false",
        "rollout.prompts_per_step=12",
        "training.steps=1",
        "evaluation=null",
    ]


def test_shares_are_what_the_recipe_says(recipe: Path, experts: list[str]) -> None:
    options = [*experts, "distill.teachers.near.share=0.4", "distill.teachers.far.share=0.6"]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    for name, share in [("near", 0.4), ("far", 0.6)]:
        measured, weight = (figures(run, f"teacher/{name}/{what}") for what in ("share", "weight"))
        assert [m * w for m, w in zip(measured, weight, strict=True)] == pytest.approx([share])


def test_whole_laws_are_asked_of_each_problems_own_teacher(recipe: Path, experts: list[str]) -> None:
    options = [*experts, "distill.loss={kind: reverse_kl_topk_hybrid, k: 4}"]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    assert figures(run, "teacher/near/loss") == pytest.approx([0.0], abs=1e-5)
    assert figures(run, "teacher/far/loss")[0] > 0.5


def test_more_likeliest_tokens_than_there_are(recipe: Path, experts: list[str]) -> None:
    many = "distill.loss={kind: reverse_kl_topk_hybrid, k: 100000}"
    with pytest.raises(
        RecipeError, match=r"loss\.k = 100000, and the policy has \d+ ids; .* reverse_kl, which"
    ):
        tp.train(tp.load_recipe(recipe, [*experts, many]))
    assert not (recipe.parent / "runs" / "tiny").exists()


def test_one_teacher_in_memory_at_a_time_teaches_the_same(
    recipe: Path, experts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*experts, "training.steps=2"]
    everyone = tp.train(tp.load_recipe(recipe, [*options, "name=all"])).folder
    alive: list[weakref.ref[Any]] = []
    original = distill.open_model

    def watched(*arguments: Any, **options: Any) -> Any:
        assert [it() for it in alive if it() is not None] == [], "another teacher is still there"
        model = original(*arguments, **options)
        alive.append(weakref.ref(model.decoder.model))
        return model

    monkeypatch.setattr(distill, "open_model", watched)
    one = tp.train(tp.load_recipe(recipe, [*options, "name=one", "distill.resident=one"])).folder
    assert state_bytes(one) == state_bytes(everyone)
    assert len(alive) == 2 + 2 * 2, "each once before the first step and once in every step"
    gc.collect()
    assert [it() for it in alive if it() is not None] == []


def test_a_teacher_that_changes_while_a_run_goes_on_is_refused(
    recipe: Path, experts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, original = save_tiny_model(tmp_path / "moving", seed=5), distill.open_model
    opened: list[str] = []

    def changing(*arguments: Any, **options: Any) -> Any:
        model = original(*arguments, **options)
        opened.append(model.source)
        if opened == [str(folder)]:
            save_tiny_model(folder, seed=6)
        return model

    monkeypatch.setattr(distill, "open_model", changing)
    options = [f"distill.teachers={{far: {{path: {folder}}}}}", "distill.resident=one", "training.steps=1"]
    with pytest.raises(ModelError, match=r"teacher far .* no longer holds the weights"):
        tp.train(tp.load_recipe(recipe, options))


def test_a_part_without_a_share_is_no_problems_teacher(recipe: Path, experts: list[str]) -> None:
    options = [
        *experts,
        "distill.teachers.both={kind: mixture, of: {near: 0.5, far: 0.5}, mean: geometric, share: 0.5}",
        "distill.teachers.near.share=0.5",
    ]
    with pytest.raises(DataError, match=r"name a teacher .*'far' \(6\); it has near, both"):
        tp.train(tp.load_recipe(recipe, options))
