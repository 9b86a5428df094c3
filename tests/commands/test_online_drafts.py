"""Draft heads that learn inside a run: they go on bit for bit, and draft with what they learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

import turnpoint as tp
from tests.runs import assert_same_run, rows
from turnpoint.models.loading import load_model
from turnpoint.models.mtp_folder import WEIGHTS, save_heads
from turnpoint.models.mtp_fresh import fresh_heads


@pytest.fixture
def heads(tmp_path: Path, tiny_folder: Path) -> Path:
    decoder = load_model(str(tiny_folder), device="cpu", dtype="float32").decoder
    made = fresh_heads(decoder)
    made.trained_depth = 2
    return save_heads(made, tmp_path / "heads")


def test_heads_learn_go_on_as_the_same_run_and_are_kept(recipe: Path, heads: Path) -> None:
    drafts = [
        f"engine.draft={{heads: {heads}, depth: 2, training: {{every: 2, tokens: 300, batch_tokens: 100}}}}",
        "engine.draft.training.learning_rate=3e-3",
        "evaluation.every=3",
        "evaluation.samples=0",
    ]
    before = (heads / WEIGHTS).read_bytes()
    whole = tp.train(tp.load_recipe(recipe, ["training.steps=5", "name=whole", *drafts])).folder
    part = tp.train(tp.load_recipe(recipe, ["training.steps=3", "name=part", *drafts])).folder
    tp.resume(part, ["training.steps=5"])
    assert_same_run(part, whole)
    assert (heads / WEIGHTS).read_bytes() == before
    learned = [row["metrics"].get("draft/trained_tokens") for row in rows(whole / "metrics.jsonl")]
    assert [it is not None for it in learned] == [False, True, False, True, False]
    assert all(0 < it["value"] <= 300 for it in learned if it)

    kept = safetensors.torch.load_file(whole / "heads" / WEIGHTS)
    assert kept.keys() == safetensors.torch.load(before).keys()
    assert any(not torch.equal(it, kept[name]) for name, it in safetensors.torch.load(before).items())
    frozen = tp.train(
        tp.load_recipe(
            recipe,
            ["training.steps=3", "name=frozen", drafts[0].replace("every: 2", "every: 9"), *drafts[1:]],
        )
    ).folder
    same = [_figures(it)[:2] for it in (whole, frozen)]
    assert same[0] == same[1], "heads that learn change nothing before they draft"
    assert _figures(whole)[2] != _figures(frozen)[2], "what was learnt drafts"


def _figures(run: Path) -> list[dict[str, float]]:
    wanted = ("grad_norm", "loss", "draft/accept_length")
    return [{name: row["metrics"][name]["value"] for name in wanted} for row in rows(run / "metrics.jsonl")]
