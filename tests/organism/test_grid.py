"""The grid: arms are valid recipes that differ as named, finished pairs are not run again, sums are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import branching_learning
from benchmarks.organism import grid, summary
from benchmarks.organism.arms import ARMS, MINI_BATCHES, Arm, arm_recipe
from benchmarks.organism.bed import recipe
from benchmarks.organism.settings import OrganismSettings
from benchmarks.organism.summary import accuracy_at, summarise

from tests.golden.organism import write_recipe
from turnpoint.config import parse_recipe
from turnpoint.errors import RecipeError

BASE = recipe(OrganismSettings(), model=Path("model"), problems=Path("problems.jsonl"))


def row(arm: str, seed: int, *points: tuple[float, float]) -> dict[str, Any]:
    curve = [
        {"step": 10 * at, "tokens": tokens, "seconds": tokens / 10, "sampled": share, "greedy": share / 2}
        for at, (tokens, share) in enumerate(points)
    ]
    end = {"generated_tokens": points[-1][0], "processor_seconds": 10.0 * seed}
    return {"arm": arm, "seed": seed, "curve": curve, "before": curve[0], "after": curve[-1], **end}


def test_every_arm_is_a_recipe_of_its_own() -> None:
    arms = {**ARMS, **branching_learning.ARMS}
    recipes = {name: arm_recipe(BASE, arm, seed=3, steps=7, every=2) for name, arm in arms.items()}
    assert {it.seed for it in recipes.values()} == {3}
    assert {(it.training.steps, it.evaluation and it.evaluation.every) for it in recipes.values()} == {(7, 2)}
    assert {it.training.mini_batches for it in recipes.values()} == {MINI_BATCHES}
    assert {name for name, it in recipes.items() if it.rollout.refill} == {"dapo"}
    each = [*recipes.values()]
    assert all(left != right for i, left in enumerate(each) for right in each[:i])
    kinds = {name: (it.loss.kind, it.loss.aggregation) for name, it in recipes.items()}
    assert kinds["gspo"] == ("gspo", "sequence")
    assert kinds["dr_grpo"] == ("ppo_clip", "constant")
    assert kinds["cispo"] == ("cispo", "token")


def test_an_arm_can_change_any_section() -> None:
    others = {"optimizer": {"learning_rate": 3e-4}, "kl": {"coef": 0.01}}
    changed = arm_recipe(BASE, Arm(loss=ARMS["grpo"].loss, others=others), seed=0, steps=7, every=2)
    plain = arm_recipe(BASE, ARMS["grpo"], seed=0, steps=7, every=2)
    assert changed.optimizer.learning_rate == 3e-4
    assert changed.kl is not None
    assert changed.model_copy(update={"optimizer": plain.optimizer, "kl": None}) == plain
    with pytest.raises(RecipeError, match=r"optimizer.rate"):
        arm_recipe(
            BASE, Arm(loss=ARMS["grpo"].loss, others={"optimizer": {"rate": 1}}), seed=0, steps=7, every=2
        )


def test_accuracy_between_two_evaluations_is_interpolated() -> None:
    run = row("a", 0, (0, 0.2), (100, 0.4), (300, 0.8))
    assert accuracy_at(run, 50, "sampled") == pytest.approx(0.3)
    assert accuracy_at(run, 200, "sampled") == pytest.approx(0.6)
    assert accuracy_at(run, 200, "greedy") == pytest.approx(0.3)


def test_arms_are_compared_at_tokens_that_all_have_reached() -> None:
    rows = [
        row("slow", 1, (0, 0.2), (100, 0.4)),
        row("slow", 2, (0, 0.2), (100, 0.6)),
        row("fast", 1, (0, 0.2), (200, 1.0)),
    ]
    fast, slow = summarise(rows)
    assert (fast["arm"], fast["tokens"], fast["sampled"]) == ("fast", 100, 0.6)
    assert fast["sampled_interval_95"] is None  # one seed says nothing of the others
    assert (slow["sampled"], slow["gain"], slow["seeds"]) == (0.5, 0.3, 2)
    # sd 0.1414 / sqrt(2) = 0.1; t(1) = 12.706
    assert slow["sampled_interval_95"] == pytest.approx([0.5 - 1.2706, 0.5 + 1.2706], abs=1e-3)
    assert slow["processor_seconds"] == 15
    with pytest.raises(ValueError, match="ended after 100"):
        summarise(rows, 150)
    with pytest.raises(ValueError, match="no line"):
        summarise([])


def test_cost_is_what_is_asked_for() -> None:
    rows = [row("slow", 1, (0, 0.2), (100, 0.4), (400, 0.8)), row("fast", 1, (0, 0.2), (200, 1.0))]
    assert {it["arm"]: it["sampled"] for it in summarise(rows)} == {
        "fast": 1.0,
        "slow": pytest.approx(0.4 + 0.4 / 3, abs=1e-4),
    }
    assert {it["arm"]: it["sampled"] for it in summarise(rows, by="step")} == {"fast": 1.0, "slow": 0.4}
    at_ten = summarise(rows, 10, by="seconds")
    assert {it["arm"]: it["sampled"] for it in at_ten} == {"fast": 0.6, "slow": 0.4}
    assert {it["seconds"] for it in at_ten} == {10}


def test_arms_are_compared_seed_by_seed() -> None:
    rows = [
        row("plain", 0, (0, 0.2), (100, 0.3)),
        row("plain", 1, (0, 0.2), (100, 0.5)),
        row("new", 1, (0, 0.2), (100, 0.7)),
        row("new", 0, (0, 0.2), (100, 0.4)),
        row("new", 9, (0, 0.2), (100, 0.9)),  # the other has no such seed
    ]
    new, plain = summarise(rows, against="plain")
    assert new["over"] == 0.15
    assert new["over_95"] == pytest.approx([0.15 - 12.706 * 0.05, 0.15 + 12.706 * 0.05], abs=1e-3)
    assert (plain["over"], plain["over_95"]) == (0, [0, 0])
    assert summarise(rows)[0]["over"] is None
    with pytest.raises(ValueError, match="no such arm, there are plain, new"):
        summarise(rows, against="old")


def test_pairs_that_are_done_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out" / "grid.jsonl"
    asked: list[tuple[str, int]] = []

    class Here:
        """Runs at once, in this process."""

        def __init__(self, processes: int, **_: Any) -> None:
            assert processes == 2

        def __enter__(self) -> Here:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, function: Any, arm: str, _: Any, settings: Any, seed: int, **how: int) -> Any:
            asked.append((arm, seed))
            assert how == {"steps": 5, "every": 2}
            assert settings == OrganismSettings()
            done: grid.Future[dict[str, Any]] = grid.Future()
            done.set_result({"arm": arm, "seed": seed})
            return done

    monkeypatch.setattr(grid, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(grid, "make_organism", str)
    monkeypatch.setattr(grid.os, "environ", dict(grid.os.environ))
    line = ["grid", str(output), "--steps", "5", "--every", "2", "--processes", "2", "--arms", "grpo", "dapo"]
    for seeds in (["0"], ["0", "1"]):
        monkeypatch.setattr(sys, "argv", [*line, "--seeds", *seeds])
        grid.main()
    assert asked == [("grpo", 0), ("dapo", 0), ("grpo", 1), ("dapo", 1)]
    assert [json.loads(text) for text in output.read_text().splitlines()] == grid.read_rows(output)
    assert len(grid.read_rows(output)) == 4


def test_the_curve_counts_every_token_that_was_sampled(tmp_path: Path) -> None:
    steps = [{"root": 100.0}, {"root": 50.0, "discarded": 30.0, "prompt": 999.0}, {"suffix": 20.0}]
    lines: list[dict[str, Any]] = [
        {
            "step": number,
            "wall_seconds": 1.0,
            "seconds": {},
            "metrics": {f"tokens/{kind}": {"kind": "sum", "value": value} for kind, value in tokens.items()},
            "findings": [],
        }
        for number, tokens in enumerate(steps, start=1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluations = [
        {"step": step, "greedy": {"accuracy": 0.5}, "sampled": {"accuracy": 0.25}} for step in (0, 2, 3)
    ]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations))
    curve = grid.read_curve(tmp_path, share=0.5)
    spent = [(point["step"], point["tokens"], point["seconds"]) for point in curve]
    assert spent == [(0, 0, 0), (2, 180, 1.0), (3, 200, 1.5)]
    assert {(point["greedy"], point["sampled"]) for point in curve} == {(0.5, 0.25)}


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_trains_and_gives_its_line(arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_recipe(tmp_path).model_dump(mode="json")
    line = two_steps(arm, ARMS[arm], tree, monkeypatch)
    assert [point["step"] for point in line["curve"]] == [0, 1, 2]
    tokens = [point["tokens"] for point in line["curve"]]
    assert 0 < line["curve"][1]["seconds"] < line["curve"][2]["seconds"]
    assert tokens[0] == 0 < tokens[1] < tokens[2] == line["generated_tokens"]
    assert (line["arm"], line["seed"], line["steps"]) == (arm, 1, 2)
    assert 0 <= line["after"]["sampled"] <= 1
    assert line["processor_seconds"] > 0


def two_steps(name: str, arm: Arm, tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the line of a run of two steps on a tiny organism."""
    base = parse_recipe({**tree, "evaluation": {"tasks": 4, "samples": 1}})

    def made(_: OrganismSettings) -> SimpleNamespace:
        return SimpleNamespace(recipe=base)

    monkeypatch.setattr(grid, "make_organism", made)
    return json.loads(json.dumps(grid.run_one(name, arm, OrganismSettings(), 1, steps=2, every=1)))


@pytest.mark.slow
@pytest.mark.parametrize("arm", branching_learning.ARMS)
def test_an_arm_that_forks_trains(arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_recipe(tmp_path).model_dump(mode="json")
    tree["rollout"]["samples_per_prompt"] = 16
    line = two_steps(arm, branching_learning.ARMS[arm], tree, monkeypatch)
    assert (line["arm"], [point["step"] for point in line["curve"]]) == (arm, [0, 1, 2])


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), "no such file"),
        (("--against", "nobody"), "--against nobody: no such arm, there are slow"),
        (("--at", "nan"), "--at nan"),
        (("--at", "-1"), "--at -1"),
    ],
)
def test_a_mistake_is_one_line(
    typed: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "grid.jsonl"
    if typed:
        file.write_text(json.dumps(row("slow", 1, (0, 0.2), (100, 0.4))) + "\n")
    monkeypatch.setattr(sys, "argv", ["summary", str(file), *typed])
    with pytest.raises(SystemExit) as ended:
        summary.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.lower().splitlines()[-1]
