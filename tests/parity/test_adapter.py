"""Engine, trainer and a whole run with an adapter: one law, a frozen base, small checkpoints."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import peft
import pytest
import torch
from safetensors import torch as safetensors_torch
from transformers import AutoModelForCausalLM

from tests.adapters import adapted, disturb, frozen_copies, logits_of, merge_by_hand, plain, trained_tensors
from tests.engine.serve import ask, generate, logprobs_of, make_engine, prompt, score
from tests.tiny import ARCHITECTURES, tiny_model
from tests.training.groups import FLAT, FORKED, make_credits, make_group, make_item, pack
from turnpoint.assemble import Policy, adapt, load_policy
from turnpoint.commands.common import restore
from turnpoint.commands.evaluate import evaluate
from turnpoint.commands.export import export
from turnpoint.commands.train import train
from turnpoint.config import load_recipe
from turnpoint.engine import TorchEngine
from turnpoint.engine.weights import weights_checksum
from turnpoint.metrics import Mean
from turnpoint.models.adapter import merged_state
from turnpoint.models.decoder import Decoder
from turnpoint.reports.terminal import Terminal
from turnpoint.training import Trainer
from turnpoint.training.checkpoint import latest_checkpoint, load_checkpoint
from turnpoint.training.loop import publish
from turnpoint.types import Group, TokenTree

TYPES = [torch.float32, torch.bfloat16]


def steps_of(trainer: Trainer, count: int, *, model: Any) -> None:
    for seed in range(count):
        trainer.forward_backward(pack([make_item(FORKED, model=model, seed=seed)]))
        trainer.optim_step()


def scored_by(engine: TorchEngine, group: Group) -> Group:
    """Returns a group of plain rollouts with the log-probabilities that the engine gives."""
    start, *rest = group.tree.segments
    scored = [
        replace(
            segment,
            logprobs=score(engine, [*start.token_ids, *segment.token_ids], len(start)).logprobs,
        )
        for segment in rest
    ]
    return replace(group, tree=TokenTree(segments=(start, *scored)))


# --- engine and trainer -------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_engine_decodes_the_law_of_the_sum_by_hand(architecture: str) -> None:
    decoder = disturb(adapted(architecture)[0])
    with torch.no_grad():
        by_hand = merge_by_hand(decoder, plain(architecture))
    engine = make_engine(decoder)
    (completion,) = generate(engine, ask(prompt_ids=prompt(20), max_tokens=12))
    ids = np.concatenate([prompt(20), completion.token_ids])
    np.testing.assert_allclose(completion.logprobs, logprobs_of(by_hand, ids, 20), atol=1e-4)
    np.testing.assert_allclose(score(engine, ids, 20).logprobs, logprobs_of(by_hand, ids, 20), atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_engine_and_trainer_agree(architecture: str) -> None:
    decoder = disturb(adapted(architecture)[0])
    trainer = Trainer(decoder, learning_rate=1e-3)
    group = scored_by(make_engine(decoder), make_group(FLAT))
    mismatch = trainer.forward_backward(pack([(group, make_credits(group))]))["mismatch"]
    assert isinstance(mismatch, Mean)
    assert mismatch.value is not None
    assert mismatch.value < 1e-5
    assert set(trainer.gradients()) == set(trained_tensors(decoder))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_base_keeps_every_bit_and_only_the_adapter_travels(dtype: torch.dtype) -> None:
    decoder, _ = adapted(dtype=dtype)
    before, started = weights_checksum(frozen_copies(decoder)), weights_checksum(trained_tensors(decoder))
    trainer, engine = Trainer(decoder, learning_rate=1e-2, weight_decay=0.1), make_engine(decoder)
    steps_of(trainer, 3, model=tiny_model().eval())
    publish(trainer, engine, version=1)
    assert set(trainer.publish()) == set(trained_tensors(decoder))
    assert weights_checksum(frozen_copies(decoder)) == before
    assert weights_checksum(trained_tensors(decoder)) != started
    masters = {name for name in trainer.state_dict() if name.startswith("master.")}
    assert masters == {f"master.{name}" for name in trained_tensors(decoder)}
    kinds = {tensor.dtype for name, tensor in trainer.state_dict().items() if name != "steps"}
    assert kinds == {torch.float32}


def test_a_published_adapter_makes_the_old_cache_unreachable() -> None:
    decoder = adapted()[0]
    trainer, engine = Trainer(decoder, learning_rate=0.05), make_engine(decoder)
    request = ask(prompt_ids=prompt(20), max_tokens=4)
    old = generate(engine, request)[0]
    assert generate(engine, request)[0].cached_tokens > 0
    steps_of(trainer, 2, model=tiny_model().eval())
    publish(trainer, engine, version=1)
    new = generate(engine, request)[0]
    assert (new.cached_tokens, new.policy_version) == (0, 1)
    ids = np.concatenate([prompt(20), new.token_ids])
    np.testing.assert_allclose(new.logprobs, logprobs_of(decoder, ids, 20), atol=1e-5)
    assert not np.allclose(new.logprobs, old.logprobs, atol=1e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_state_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    model = tiny_model().eval()
    decoder, other = adapted(dtype=dtype)[0], adapted(dtype=dtype, seed=9)[0]
    trainer, loaded = Trainer(decoder, learning_rate=1e-2), Trainer(other, learning_rate=1e-2)
    steps_of(trainer, 2, model=model)
    loaded.load_state_dict({name: tensor.clone() for name, tensor in trainer.state_dict().items()})
    for one in (trainer, loaded):
        steps_of(one, 2, model=model)
    assert weights_checksum(trained_tensors(decoder)) == weights_checksum(trained_tensors(other))
    assert weights_checksum(trainer.state_dict()) == weights_checksum(loaded.state_dict())


# --- a whole run --------------------------------------------------------------------------------


def policy_of(run: Path) -> Policy:
    """Returns the policy that a run folder says it trained."""
    config = load_recipe(run / "recipe.yaml")
    policy = load_policy(config, ())
    restore(config, policy, run, Terminal())
    return policy


def law_of(model: Any) -> torch.Tensor:
    model.set_attn_implementation("eager")
    return model.eval()(input_ids=torch.arange(20, 44).unsqueeze(0)).logits[0]


def read_by_peft(base: Path, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = AutoModelForCausalLM.from_pretrained(base)
        return cast(Any, peft).PeftModel.from_pretrained(model, folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_is_exported_both_ways_and_evaluated(
    recipe: Path, tmp_path: Path, tiny_folder: Path, dtype: str
) -> None:
    run = train(load_recipe(recipe, ["model.adapter={rank: 4}", f"model.dtype={dtype}"])).folder
    path = latest_checkpoint(run / "checkpoints")
    assert path is not None
    state = load_checkpoint(path).state
    assert all("lora_" in name for name in state if name != "steps")
    assert evaluate(run).greedy is not None
    policy = policy_of(run)
    logits = logits_of(policy.model.decoder).detach()
    merged: Any = AutoModelForCausalLM.from_pretrained(export(run, tmp_path / "merged"))
    assert str(merged.dtype) == f"torch.{dtype}"
    expected = merged_state(policy.model.decoder.model)
    assert weights_checksum(merged.state_dict()) == weights_checksum(expected)
    adapter = read_by_peft(tiny_folder, export(run, tmp_path / "adapter", adapter=True))
    if dtype == "float32":  # in bfloat16, B A is rounded together with W when merged, and beside it when not
        with torch.no_grad():
            torch.testing.assert_close(law_of(merged), logits, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(law_of(adapter), logits, rtol=1e-4, atol=1e-4)
    base: dict[str, torch.Tensor] = cast(Any, safetensors_torch).load_file(tiny_folder / "model.safetensors")
    held = policy.model.decoder.model.state_dict()
    for name, weight in base.items():
        path_in_model = name if name in held else f"{name.removesuffix('.weight')}.base_layer.weight"
        assert torch.equal(held[path_in_model], weight.to(held[path_in_model].dtype)), name


def test_a_continued_run_begins_as_the_exported_one_ended(recipe: Path, tmp_path: Path) -> None:
    run = train(load_recipe(recipe, ["model.adapter={rank: 4}", "evaluation=null"])).folder
    export(run, tmp_path / "adapter", adapter=True)
    config = load_recipe(recipe, [f"model.adapter={{kind: saved, path: {tmp_path / 'adapter'}}}", "seed=7"])
    begun = load_policy(config, ()).model.decoder
    assert torch.equal(logits_of(begun), logits_of(policy_of(run).model.decoder))
    again = policy_of(train(config).folder).model.decoder
    assert not torch.equal(logits_of(again), logits_of(begun))


def test_the_seed_of_the_recipe_starts_the_adapter(recipe: Path) -> None:
    checksums: list[str] = []
    for seed in (0, 0, 1):
        model = tiny_model()
        put = adapt(load_recipe(recipe, ["model.adapter={}"]).model, seed=seed)
        assert put is not None
        put(model)
        checksums.append(weights_checksum(trained_tensors(Decoder(model, vocab_size=8))))
    assert checksums[0] == checksums[1] != checksums[2]
