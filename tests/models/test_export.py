"""An export is a normal Hugging Face folder: same law, same tokenizer files, tied where tied."""

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import torch as safetensors_torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.tiny import ARCHITECTURES, save_tiny_model, tiny_tokenizer
from turnpoint.errors import RunFolderError
from turnpoint.models import export_model, load_model
from turnpoint.models.attention import CausalLayout
from turnpoint.models.loading import LoadedModel


def loaded(folder: Path, architecture: str = "llama") -> LoadedModel:
    return load_model(save_tiny_model(folder, architecture), device="cpu", dtype="float32")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_plain_transformers_reads_the_same_law(tmp_path: Path, architecture: str) -> None:
    policy = loaded(tmp_path / "source", architecture)
    policy.decoder.head.weight.add_(0.1)  # trained a little
    folder = export_model(policy.decoder, tokenizer=policy.folder, folder=tmp_path / "export")
    model, info = cast(Any, AutoModelForCausalLM).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    ids = torch.arange(20, 32)
    expected = policy.decoder.logits(policy.decoder.hidden(ids, torch.arange(12), CausalLayout()))
    torch.testing.assert_close(model(input_ids=ids.unsqueeze(0)).logits[0], expected, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation("eager")
    again = load_model(folder, device="cpu", dtype="float32").decoder
    assert torch.equal(again.logits(again.hidden(ids, torch.arange(12), CausalLayout())), expected)


@pytest.mark.parametrize(("architecture", "tied"), [("gemma", True), ("gpt2", True), ("llama", False)])
def test_tied_weights_stay_tied(tmp_path: Path, architecture: str, tied: bool) -> None:
    policy = loaded(tmp_path / "source", architecture)
    folder = export_model(policy.decoder, tokenizer=policy.folder, folder=tmp_path / "export")
    stored = cast(Any, safetensors_torch).load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in stored) is not tied
    again = load_model(folder, device="cpu", dtype="float32").decoder
    assert (again.head.weight is again.model.get_input_embeddings().weight) is tied


def test_tokenizer_and_generation_config_are_the_sources_byte_for_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    save_tiny_model(source)
    odd = '{ "eos_token_id": [1, 2],\n "do_sample": false, "temperature": 0.6 }'
    (source / "generation_config.json").write_text(odd)
    (source / "tokenizer_config.json").write_text(
        json.dumps(json.loads((source / "tokenizer_config.json").read_text()) | {"custom": "kept"})
    )
    (source / "README.md").write_text("not the tokenizer's")
    policy = load_model(source, device="cpu", dtype="float32")
    folder = export_model(policy.decoder, tokenizer=source, folder=tmp_path / "export")
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        assert (folder / name).read_bytes() == (source / name).read_bytes(), name
    assert sorted(os.listdir(folder)) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "turnpoint_export.json",
    ]


def test_a_tokenizer_object_is_saved(tmp_path: Path) -> None:
    policy = loaded(tmp_path / "source")
    before = policy.decoder.model.generation_config
    before.temperature = 0.6  # without do_sample: transformers would not save it
    folder = export_model(policy.decoder, tokenizer=tiny_tokenizer(), folder=tmp_path / "export")
    assert policy.decoder.model.generation_config is before
    assert load_model(folder, device="cpu", dtype="float32").stop_ids == {1}
    again = cast(Any, AutoTokenizer).from_pretrained(folder)
    assert again("odd \t text!")["input_ids"] == tiny_tokenizer()("odd \t text!")["input_ids"]
    assert again.chat_template == tiny_tokenizer().chat_template


def test_an_earlier_export_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    policy = loaded(tmp_path / "source")
    export = tmp_path / "export"
    export.mkdir()  # empty: fine
    for _ in range(2):
        export_model(policy.decoder, tokenizer=policy.folder, folder=export)
    with pytest.raises(RunFolderError, match="is no export of turnpoint"):
        export_model(policy.decoder, tokenizer=policy.folder, folder=policy.folder)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="is no export of turnpoint"):
        export_model(policy.decoder, tokenizer=policy.folder, folder=tmp_path / "file")
    assert sorted(os.listdir(tmp_path)) == ["export", "file", "source"]


def test_a_failed_export_leaves_the_earlier_one(tmp_path: Path) -> None:
    policy = loaded(tmp_path / "source")
    export = export_model(policy.decoder, tokenizer=policy.folder, folder=tmp_path / "export")
    before = (export / "model.safetensors").read_bytes()

    class Broken:
        def save_pretrained(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(RunFolderError, match=r"cannot be written: .*No space left"):
        export_model(policy.decoder, tokenizer=Broken(), folder=export)
    assert (export / "model.safetensors").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["export", "source"]
