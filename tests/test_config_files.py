"""Recipe files and overrides: what changes what, and what no recipe is."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnpoint import config
from turnpoint.config import RunConfig, load_recipe
from turnpoint.errors import RecipeError


def load(tmp_path: Path, *overrides: str, text: str = "tasks: {kind: jsonl, path: a}\n") -> RunConfig:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, overrides)


def test_overrides_change_values_in_order(tmp_path: Path) -> None:
    recipe = load(
        tmp_path,
        "training.steps=20",
        "training.steps=30",
        "sampling.stop=['a=b', \"\\n\"]",
        "optimizer.betas=[0.5, 0.6]",
        "evaluation.tasks=4",
        "training.save_every=null",
        "tasks={kind: hub, path: gsm8k}",
        "tasks.subset=main",
    )
    assert recipe.training.steps == 30
    assert recipe.sampling.stop == ("a=b", "\n")
    assert recipe.optimizer.betas == (0.5, 0.6)
    assert recipe.evaluation is not None
    assert recipe.evaluation.tasks == 4
    assert recipe.training.save_every is None
    assert recipe.tasks == config.HubTasks(kind="hub", path="gsm8k", subset="main")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps", "override 'training.steps': expected key=value, for example training.steps=20"),
        ("=3", "override '=3': expected key=value, for example training.steps=20"),
        ("training.steps=[", "override 'training.steps=[': '[' is not a value"),
        ("tasks.path.x=1", "override 'tasks.path.x=1': 'path' holds a value, not a section"),
        ("training.steps=", "training.steps = None: Input should be a valid integer"),
        ("training.stepz=3", "training.stepz: unknown key; did you mean training.steps?"),
        ("tasks.kind=hub", "tasks.kind = "),
    ],
)
def test_bad_overrides_are_named(tmp_path: Path, override: str, message: str) -> None:
    if override == "tasks.kind=hub":
        assert load(tmp_path, override).tasks.kind == "hub"
        return
    with pytest.raises(RecipeError) as error:
        load(tmp_path, override)
    assert str(error.value) == message


CLIPPED = "tasks: {kind: jsonl, path: a}\nloss: {clip_low: 0.2, clip_high: 0.28}\n"


@pytest.mark.parametrize("explicit", ["", "kind: ppo_clip, "])
def test_another_kind_does_not_inherit_what_was_meant_for_the_first(tmp_path: Path, explicit: str) -> None:
    text = CLIPPED.replace("clip_low", f"{explicit}clip_low")
    with pytest.raises(RecipeError) as error:
        load(tmp_path, "loss.kind=gspo", text=text)
    assert str(error.value) == (
        "override 'loss.kind=gspo': loss.clip_high = 0.28, loss.clip_low = 0.2 in the recipe was meant for "
        "another kind; write loss={kind: gspo} to begin the section anew"
    )
    assert load(tmp_path, "loss={kind: gspo}", text=text).loss == config.GspoLoss(kind="gspo")
    assert load(tmp_path, "loss.kind=ppo_clip", text=text).loss.kind == "ppo_clip"  # the kind that it is
    assert load(tmp_path, "loss.kind=gspo", "loss.clip_low=0.2").loss.clip_low == 0.2  # asked for


def test_overrides_do_not_change_the_file(tmp_path: Path) -> None:
    load(tmp_path, "training.steps=20")
    assert load_recipe(tmp_path / "recipe.yaml").training.steps == 100


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"tasks: [", "not YAML"),
        (b"- a\n- b\n", "expected keys and values, got list"),
        (b"", "expected keys and values, got NoneType"),
        (b"\xff\xfe\x00", "codec can't decode"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=why) as error:
        load_recipe(path)
    assert str(error.value).startswith(f"recipe {path}: ")
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    said = {tmp_path / "none.yaml": "no such recipe or run folder", tmp_path: "is a folder, and this command"}
    for path, words in said.items():
        with pytest.raises(RecipeError, match=f"{path}:? {words}"):
            load_recipe(path)


def test_a_section_that_comes_twice_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("tasks: {kind: jsonl, path: a}\nloss: {clip_low: 0.1}\nloss: {clip_high: 0.1}\n")
    with pytest.raises(RecipeError, match="loss comes twice"):
        load_recipe(recipe)


@pytest.mark.parametrize(
    "text",
    ["name: 2020-13-45", "seed: " + "9" * 6000, "a: " + "[" * 3000 + "]" * 3000],
    ids=["no such date", "thousands of digits", "nesting without end"],
)
def test_what_yaml_itself_trips_over_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match="not YAML"):
        load_recipe(path)


def test_an_override_opens_a_section_that_the_recipe_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("tasks: {kind: jsonl, path: a}\nevaluation: null\n")
    evaluation = load_recipe(path, ["evaluation.tasks=2"]).evaluation
    assert evaluation is not None
    assert evaluation.tasks == 2
