"""Groups that fork, trained from recipes on a tiny model: every rule, every credit, resume, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import turnpoint as tp
from tests.reports.pages import overview
from tests.runs import assert_same_run, rows
from tests.tiny import save_tiny_model
from tests.typed import Command, is_one_line
from turnpoint.reports.run_records import StepRecord, read_metrics, read_notes
from turnpoint.rollout import read_groups
from turnpoint.training import latest_checkpoint, load_checkpoint
from turnpoint.types import BranchOrigin, Group, TokenKind

SHAPE = [
    "rollout.samples_per_prompt=8",
    "rollout.branching={roots: 2, continuations: [2, 1], min_gap: 2, deterministic: true}",
    "sampling.max_new_tokens=12",
    "evaluation=null",
]


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose context has room for reflections."""
    folder = save_tiny_model(tmp_path_factory.mktemp("long") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


def run(recipe: Path, *changes: str) -> Path:
    return tp.train(tp.load_recipe(recipe, [*SHAPE, *changes])).folder


def weights(folder: Path) -> torch.Tensor:
    path = latest_checkpoint(folder / "checkpoints")
    assert path is not None
    return torch.cat([tensor.float().reshape(-1) for tensor in load_checkpoint(path).state.values()])


def groups(folder: Path) -> list[Group]:
    return sorted(read_groups(folder / "rollouts.jsonl"), key=lambda group: group.id)


def steps(folder: Path) -> list[StepRecord]:
    return read_metrics(folder / "metrics.jsonl")


RULES = {
    "hindsight": "{kind: hindsight, source: {kind: feedback}}",
    "reflected": "{kind: hindsight, source: {kind: reflection, max_tokens: 8, gate: null}}",
    "sibling": "{kind: hindsight, source: {kind: sibling}}",
    "entropy": "{kind: entropy}",
    "surprisal": "{kind: surprisal}",
    "random": "{kind: random}",
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains(recipe: Path, long_folder: Path, rule: str) -> None:
    folder = run(recipe, f"rollout.branching.rule={RULES[rule]}", f"model.path={long_folder}")
    made = groups(folder)
    assert [len(group.members) for group in made] == [8] * 8  # 2 steps of 4
    points = {it.origin.rule for group in made for it in group.members if isinstance(it.origin, BranchOrigin)}
    assert points == {"hindsight" if rule in ("reflected", "sibling") else rule}
    for group in made:
        assert [it.insight is not None for it in group.members] == [True, True] + [False] * 6
    for step in steps(folder):
        assert 0 < step.metrics["branching/depth"] < 1
        assert 0 < step.metrics["branching/points"] <= 1
        assert step.metrics["grad_norm"] > 0
        assert step.metrics["mismatch"] < 1e-4  # continuations too are of the law that the trainer has
        assert step.metrics[f"tokens/{TokenKind.SUFFIX}"] > 0
        assert step.metrics[f"tokens/{TokenKind.CACHED}"] > 0


def test_reflections_are_weighed_against_the_verifier(recipe: Path, long_folder: Path) -> None:
    folder = run(recipe, "rollout.branching.rule.source.max_tokens=8", f"model.path={long_folder}")
    step = steps(folder)[0]
    assert step.metrics["branching/agreement"] == 0  # a random model writes no OUTCOME
    assert step.metrics["branching/set_aside"] == 1
    assert step.metrics[f"tokens/{TokenKind.REFLECTION}"] > 0
    insight = groups(folder)[0].members[0].insight
    assert insight is not None
    assert insight.rule == "entropy"
    assert "the reflection says no outcome" in insight.set_aside


ACCOUNTED = [
    *(f"tokens/{kind}" for kind in TokenKind),
    *(
        f"branching/{it}"
        for it in ("depth", "points", "agreement", "set_aside", "redrawn", "spread", "fresh")
    ),
    *("seconds/reflect", "seconds/score", "seconds/examination_share", "signal", "cache_hit"),
]


def test_what_a_step_cost_is_accounted_for(turnpoint: Command, recipe: Path, long_folder: Path) -> None:
    rule = RULES["reflected"]
    answer = turnpoint("train", recipe, *SHAPE, f"rollout.branching.rule={rule}", f"model.path={long_folder}")
    assert answer.status == 0, answer.err
    folder = recipe.parent / "runs" / "tiny"
    for step in steps(folder):
        assert set(ACCOUNTED) <= set(step.metrics)
        assert step.metrics["seconds/reflect"] > 0
        assert step.metrics["seconds/score"] > 0
        assert 0 < step.metrics["seconds/examination_share"] < 1
        assert 0 < step.metrics["cache_hit"] < 1
    assert answer.out.count("summed over roots,") == 2 + 1  # steps, and the end
    assert turnpoint("report", folder).status == 0
    page = overview(folder / "report.html")
    assert {"seconds/reflect", "seconds/score"} <= set(page["curves"]["figures"])
    assert any("reflections took" in it["text"] for it in page["findings"])


def test_a_model_that_names_no_steps_gives_rollouts_from_the_prompt(recipe: Path, long_folder: Path) -> None:
    folder = run(
        recipe, "rollout.branching.rule={kind: reflection, max_tokens: 4}", f"model.path={long_folder}"
    )
    step = steps(folder)[0]
    assert step.metrics["branching/points"] == 0
    assert step.metrics["branching/fresh"] == 4 * 6
    assert "branching/depth" not in step.metrics


CREDITS = [
    "advantage.baseline=mean",
    "advantage.baseline=leave_one_out",
    "advantage={kind: sibling_leave_one_out}",
    "advantage={kind: sibling_leave_one_out, decay: 0}",
    "advantage={kind: subtree_value}",
]


def test_every_credit_trains_differently_on_the_same_rollouts(recipe: Path) -> None:
    at = "rollout.branching.rule={kind: random}"
    runs = [run(recipe, at, credit, "training.steps=1") for credit in CREDITS]
    first = groups(runs[0])
    for folder in runs[1:]:
        for one, other in zip(groups(folder), first, strict=True):
            assert one.tree == other.tree
    learnt = [weights(folder) for folder in runs]
    for index, one in enumerate(learnt):
        assert all(not torch.equal(one, other) for other in learnt[:index]), CREDITS[index]


OPTIONS = [
    "roots=1",
    "continuations=[1, 2]",
    "min_gap=6",
    "skip_first=5",
    "skip_last=8",
    "rule.weigh_alternatives=true",
]


def test_no_option_is_inert(recipe: Path) -> None:
    base = ["training.steps=1", "rollout.branching.rule={kind: hindsight, source: {kind: feedback}}"]
    plain = [group.tree for group in groups(run(recipe, *base))]
    for option in OPTIONS:
        changes = [*base, f"rollout.branching.{option}"]
        if option == "roots=1":
            changes += ["rollout.branching.continuations=[4, 3]"]
        assert [group.tree for group in groups(run(recipe, *changes))] != plain, option


def test_a_run_that_forks_goes_on_bit_for_bit(recipe: Path, long_folder: Path) -> None:
    settings = [
        "rollout.branching.rule={kind: hindsight, source: {kind: reflection, max_tokens: 4}}",
        f"model.path={long_folder}",
        "evaluation={tasks: 4, samples: 1}",
    ]
    whole = run(recipe, *settings, "training.steps=3")
    half = run(recipe, *settings, "training.steps=1")
    tp.resume(half, ["training.steps=3"])
    first, last = (rows(it / "evaluations.jsonl") for it in (half, whole))
    assert [row["step"] for row in first] == [0, 1, 3]
    (half / "evaluations.jsonl").write_bytes((whole / "evaluations.jsonl").read_bytes())  # one more, after 1
    assert first[-1] == last[-1]
    assert_same_run(half, whole)


def test_a_run_that_goes_on_without_deterministic_forks_says_so(
    turnpoint: Command, recipe: Path, long_folder: Path
) -> None:
    folder = recipe.parent / "runs" / "tiny"
    free = ["rollout.branching.deterministic=false", "rollout.branching.rule={kind: random}"]
    note = "groups fork as verdicts come, so the last bits may differ from a run without interruption"
    first = turnpoint("train", recipe, *SHAPE, *free, "training.steps=1")
    assert first.status == 0, first.err
    assert note not in first.out
    assert not (folder / "notes.jsonl").exists()
    answer = turnpoint("train", folder, "training.steps=2")
    assert answer.status == 0, answer.err
    (line,) = [it for it in answer.out.splitlines() if note in it]
    assert "rollout.branching.deterministic=true goes on bit for bit" in line
    assert read_notes(folder / "notes.jsonl") == [(1, line)]
    assert turnpoint("report", folder).status == 0
    assert overview(folder / "report.html")["notes"] == [f"after step 1: {line}"]


@pytest.mark.parametrize("branching", ["deterministic=true", "null"])
def test_a_run_that_goes_on_bit_for_bit_has_no_note(turnpoint: Command, recipe: Path, branching: str) -> None:
    change = "rollout.branching=null" if branching == "null" else f"rollout.branching.{branching}"
    rule = [] if branching == "null" else ["rollout.branching.rule={kind: random}"]
    answer = turnpoint("train", recipe, *SHAPE, change, *rule, "training.steps=1")
    assert answer.status == 0, answer.err
    folder = recipe.parent / "runs" / "tiny"
    answer = turnpoint("train", folder, "training.steps=2")
    assert answer.status == 0, answer.err
    assert "the last bits may differ" not in answer.out
    assert not (folder / "notes.jsonl").exists()


def test_dynamic_sampling_sets_whole_trees_aside(recipe: Path) -> None:
    with (recipe.parent / "rewards.py").open("a") as file:
        file.write("\ndef same(completion, task):\n    return 1.0\n")
    same = f"verifier.path={recipe.parent / 'rewards.py'}:same"
    folder = run(recipe, same, "rollout.refill.rounds=1", "rollout.branching.rule={kind: random}")
    step = steps(folder)[0]
    assert step.metrics["refill/set_aside"] == 8
    generated = step.metrics[f"tokens/{TokenKind.ROOT}"] + step.metrics[f"tokens/{TokenKind.SUFFIX}"]
    assert step.metrics["refill/set_aside_tokens"] == generated


@pytest.mark.parametrize("loss", ["{kind: gspo}", "{aggregation: sequence}", "{aggregation: constant}"])
def test_every_aggregation_takes_suffixes(recipe: Path, loss: str) -> None:
    folder = run(recipe, "rollout.branching.rule={kind: random}", f"loss={loss}", "training.epochs=2")
    assert all(step.metrics["grad_norm"] > 0 for step in steps(folder))


def test_a_reflection_without_room_is_one_line(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("train", recipe, *SHAPE, "rollout.branching.rule.source.max_tokens=256")
    assert is_one_line(answer, "a reflection of up to 256 tokens has no room in the context of 256")


def test_a_shape_that_does_not_fit_is_one_line(turnpoint: Command, recipe: Path) -> None:
    answer = turnpoint("train", recipe, "rollout.branching={}")
    assert is_one_line(answer, "rollout.branching: 2 x (1 + 4 + 3) = 16 rollouts, and rollout.samples")
