"""Runs with teachers: a policy that moves towards another model, told apart by the figures it logs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import turnpoint as tp
from tests.runs import state_bytes
from tests.tiny import save_tiny_model
from turnpoint.errors import DataError, ModelError, RecipeError


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model once more, with other weights."""
    return save_tiny_model(tmp_path_factory.mktemp("other") / "tiny", seed=1)


def figures(run: Path, name: str) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"][name]["value"] for line in lines]


def alone(teacher: Path) -> list[str]:
    """Options of a run in which the model in `teacher` alone says what tokens deserve."""
    return [
        f"distill.teachers.big.path={teacher}",
        "distill.task=false",
        "rollout.samples_per_prompt=1",
        "rollout.prompts_per_step=8",
        "optimizer.learning_rate=0.02",
        "evaluation=null",
    ]


def test_the_teacher_alone_is_approached(recipe: Path, other_folder: Path) -> None:
    run = tp.train(tp.load_recipe(recipe, [*alone(other_folder), "training.steps=30"])).folder
    kl = figures(run, "teacher/kl")
    assert kl[0] > 2
    assert sum(kl[-5:]) < 0.8 * sum(kl[:5])
    assert figures(run, "teacher/floored") == [0.0] * 30


def test_the_task_and_a_teacher_teach_together_and_the_run_goes_on_bit_for_bit(
    recipe: Path, other_folder: Path
) -> None:
    options = [f"distill.teachers.big.path={other_folder}", "distill.coef=0.1", "evaluation=null"]
    whole = tp.train(tp.load_recipe(recipe, [*options, "training.steps=4", "name=whole"])).folder
    part = tp.train(tp.load_recipe(recipe, [*options, "training.steps=2", "name=part"])).folder
    tp.resume(part, ["training.steps=4"])
    assert state_bytes(part) == state_bytes(whole)
    plain = tp.train(tp.load_recipe(recipe, ["training.steps=4", "evaluation=null", "name=plain"])).folder
    assert state_bytes(plain) != state_bytes(whole)


def test_an_earlier_run_teaches_a_later_one(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = tp.train(tp.load_recipe(recipe, ["name=stage", "training.steps=4"])).folder
    options = [
        "distill.teachers.stage.kind=run",
        f"distill.teachers.stage.path={stage}",
        "distill.task=false",
        "training.steps=1",
        "name=later",
    ]
    later = tp.train(tp.load_recipe(recipe, options)).folder
    assert figures(later, "teacher/kl")[0] > 1e-4
    assert "has the weights that the policy starts with" not in capsys.readouterr().out


def test_the_policy_itself_as_its_teacher_says_nothing_and_that_is_said(
    recipe: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"distill.teachers.own.path={tiny_folder}", "distill.task=false", "training.steps=1"]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    assert abs(figures(run, "teacher/kl")[0]) < 1e-5
    assert "teacher own has the weights that the policy starts with" in capsys.readouterr().out


def test_what_the_policy_knows_in_hindsight_teaches_it(recipe: Path) -> None:
    options = ["distill.teachers.later.kind=hindsight", "distill.task=false", "training.steps=2"]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    assert figures(run, "teacher/gap_p99")[0] > 0
    assert figures(run, "teacher/silent") == [0.0, 0.0]


def test_experts_are_chosen_by_the_problems_own_column(
    recipe: Path, other_folder: Path, tiny_folder: Path
) -> None:
    rows = [json.loads(line) for line in (recipe.parent / "sums.jsonl").read_text().splitlines()]
    marked = [{**row, "expert": "far" if index % 2 else "near"} for index, row in enumerate(rows)]
    (recipe.parent / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in marked))
    options = [
        f"distill.teachers.near.path={tiny_folder}",
        f"distill.teachers.far.path={other_folder}",
        "distill.key=expert",
        "training.steps=1",
        "rollout.prompts_per_step=12",
    ]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    assert abs(figures(run, "teacher/near/kl")[0]) < 1e-5
    assert figures(run, "teacher/far/kl")[0] > 0.1
    assert 0.2 < figures(run, "teacher/far/share")[0] < 0.8


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (["distill.teachers={}"], RecipeError, "distill.teachers"),
        (["distill.teachers.a.path=x", "distill.teachers.b.path=y"], RecipeError, "say by distill.key which"),
        (
            ["distill.teachers.a.path=x", "distill.task=false", "rollout.refill={}"],
            RecipeError,
            "with distill.task = false rewards teach nothing",
        ),
        (["distill.teachers.a.path=nowhere"], ModelError, "nowhere"),
        (["distill.teachers.later.kind=hindsight", "distill.key=expert"], DataError, "no column 'expert'"),
    ],
)
def test_what_cannot_teach_is_refused(
    recipe: Path, options: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tp.train(tp.load_recipe(recipe, options))


def test_a_teacher_alone_is_not_clipped_unless_asked(recipe: Path, other_folder: Path) -> None:
    options = [f"distill.teachers.big.path={other_folder}", "distill.task=false"]
    assert tp.load_recipe(recipe, options).loss.kind == "reinforce"
    assert tp.load_recipe(recipe, [*options, "loss.kind=ppo_clip"]).loss.kind == "ppo_clip"
    assert tp.load_recipe(recipe, options[:1]).loss.kind == "ppo_clip"


def test_clip_and_discount_change_what_is_learnt(recipe: Path, other_folder: Path) -> None:
    options = [f"distill.teachers.big.path={other_folder}", "distill.task=false", "training.steps=1"]
    runs = {
        name: tp.train(tp.load_recipe(recipe, [*options, f"name={name}", *more])).folder
        for name, more in {
            "plain": [],
            "clipped": ["distill.loss.clip=0.5"],
            "later": ["distill.loss.discount=0.9"],
            "small": ["distill.coef=0.5"],
        }.items()
    }
    norms = {name: figures(run, "grad_norm")[0] for name, run in runs.items()}
    assert len(set(norms.values())) == 4
    assert norms["small"] == pytest.approx(norms["plain"] / 2, rel=1e-4)
    assert norms["clipped"] < norms["plain"]
    assert figures(runs["clipped"], "teacher/clipped")[0] > 0.5
    assert figures(runs["plain"], "teacher/clipped")[0] == 0


@pytest.mark.parametrize(
    "loss", ["reverse_kl", "forward_kl", "jensen_shannon", "reverse_kl_topk_hybrid, k: 3"]
)
def test_the_whole_law_of_a_teacher_is_approached(recipe: Path, other_folder: Path, loss: str) -> None:
    options = [*alone(other_folder), f"distill.loss={{kind: {loss}}}", "training.steps=20"]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    values = figures(run, "teacher/loss")
    assert values[0] > 0.1
    assert sum(values[-3:]) < 0.85 * sum(values[:3])
    exact = figures(run, "teacher/kl_exact")
    if loss == "reverse_kl":
        assert exact == pytest.approx(values, rel=1e-5)
    if loss.startswith("reverse_kl_topk_hybrid"):
        assert values[0] == pytest.approx(exact[0], rel=0.3), "an estimate of it"
        policy, teacher = figures(run, "teacher/mass_policy"), figures(run, "teacher/mass_teacher")
        assert 3 / 108 < teacher[0] < policy[0] < 1


def test_the_whole_law_and_the_sampled_token_pull_the_same_way(recipe: Path, other_folder: Path) -> None:
    """One step each on the same rollouts: the exact divergence is what the sampled signal estimates."""
    options = [f"distill.teachers.big.path={other_folder}", "distill.task=false", "training.steps=1"]
    runs = [
        tp.train(tp.load_recipe(recipe, [*options, f"name={kind}", f"distill.loss={{kind: {kind}}}"])).folder
        for kind in ("sampled", "reverse_kl")
    ]
    estimated, exact = figures(runs[0], "teacher/kl")[0], figures(runs[1], "teacher/loss")[0]
    assert figures(runs[1], "teacher/kl")[0] == pytest.approx(estimated)
    assert exact == pytest.approx(estimated, rel=0.3)


def test_a_teacher_that_is_the_policy_leaves_every_weight_as_it_was(recipe: Path, tiny_folder: Path) -> None:
    options = [f"distill.teachers.own.path={tiny_folder}", "distill.task=false", "training.steps=1"]
    run = tp.train(tp.load_recipe(recipe, [*options, "distill.loss={kind: reverse_kl}"])).folder
    assert figures(run, "teacher/loss")[0] == pytest.approx(0, abs=1e-6)
    assert figures(run, "grad_norm")[0] == pytest.approx(0, abs=1e-5)


def test_a_run_goes_on_with_the_teacher_it_began_with(recipe: Path, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "teacher", seed=1)
    options = [f"distill.teachers.big.path={folder}", "training.steps=1", "evaluation=null"]
    run = tp.train(tp.load_recipe(recipe, options)).folder
    shutil.rmtree(folder)
    save_tiny_model(folder, seed=2)
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(ModelError, match="teacher big does not hold the weights that it had when"):
        tp.resume(run, ["training.steps=2"])
    assert (run / "metrics.jsonl").read_text() == before
    moved = save_tiny_model(tmp_path / "elsewhere", seed=1)
    tp.resume(run, ["training.steps=2", f"distill.teachers.big.path={moved}"])
    assert len(figures(run, "loss")) == 2
