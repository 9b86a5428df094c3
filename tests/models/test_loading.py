"""Loading: what a folder says about a model, and one line about everything that can be wrong with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors import torch as safetensors_torch
from transformers import AutoModelForCausalLM, T5Config

from tests.tiny import ARCHITECTURES, CONTEXT, save_tiny_model, tiny_model, tiny_tokenizer
from turnpoint.errors import ModelError
from turnpoint.models import load_model, loading
from turnpoint.models.attention import CausalLayout
from turnpoint.models.pretrained import first_line


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_loads_with_all_it_says(tmp_path: Path, architecture: str) -> None:
    folder = save_tiny_model(tmp_path, architecture)
    loaded = load_model(folder, device="cpu", dtype="float32")
    assert loaded.context_length == CONTEXT
    assert loaded.stop_ids == {1}
    assert loaded.decoder.vocab_size == len(loaded.tokenizer) == 108
    assert (loaded.source, loaded.folder, loaded.dtype) == (str(folder), folder, "float32")


@torch.no_grad()
def test_the_weights_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "qwen3")
    decoder = load_model(folder, device="cpu", dtype="float32").decoder
    ids = torch.arange(20, 30)
    expected = cast(Any, AutoModelForCausalLM).from_pretrained(folder)(input_ids=ids.unsqueeze(0)).logits[0]
    actual = decoder.logits(decoder.hidden(ids, torch.arange(10), CausalLayout()))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_loading_says_nothing_and_leaves_transformers_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    folder = save_tiny_model(tmp_path, "gpt2")
    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    capfd.readouterr()
    load_model(folder, device="cpu", dtype="float32")
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == 30  # warnings
    assert logging.is_progress_bar_enabled()


def test_bfloat16_can_be_asked_for(tmp_path: Path) -> None:
    loaded = load_model(save_tiny_model(tmp_path), device="cpu", dtype="bfloat16")
    assert loaded.decoder.dtype == torch.bfloat16
    assert loaded.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True}, "float32"),
        ({"avx512_f": True, "avx512_bf16": True}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({"architecture": "arm64"}, "float32"),
    ],
)
def test_auto_takes_bfloat16_where_the_cpu_multiplies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capabilities: Mapping[str, Any], expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert load_model(save_tiny_model(tmp_path), device="cpu").dtype == expected


# --- stop ids and vocabulary --------------------------------------------------------------------


def test_stop_ids_are_the_union_of_tokenizer_generation_config_and_template(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|unk|>"  # the template still ends turns with <|end|>
    tokenizer.save_pretrained(folder)
    edit(folder / "generation_config.json", eos_token_id=[20, 21])
    assert load_model(folder, device="cpu", dtype="float32").stop_ids == {1, 7, 20, 21}
    edit(folder / "generation_config.json", eos_token_id=22)
    assert load_model(folder, device="cpu", dtype="float32").stop_ids == {1, 7, 22}


def test_a_base_model_without_template_stops_at_its_eos(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    (folder / "chat_template.jinja").unlink()
    assert load_model(folder, device="cpu", dtype="float32").stop_ids == {1}


def test_rows_beyond_the_tokenizer_are_padding(tmp_path: Path) -> None:
    tiny_model(vocab_size=128).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    decoder = load_model(tmp_path, device="cpu", dtype="float32").decoder
    assert (decoder.vocab_size, decoder.config.vocab_size) == (108, 128)


def test_a_tokenizer_with_gaps_counts_by_its_largest_id(tmp_path: Path) -> None:
    tiny_model(vocab_size=128).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["far"] = 120
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load_model(tmp_path, device="cpu", dtype="float32").decoder.vocab_size == 121


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    tiny_model(vocab_size=100).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    refused(tmp_path, "ids up to 107 but the model only 100 rows")


# --- refusals -----------------------------------------------------------------------------------


def refused(path: str | Path, reason: str, **how: Any) -> None:
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32"} | how
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./nowhere", r"model \./nowhere: there is no such folder$"),
        ("/no/where", "there is no such folder"),
        ("someone/model", "no such folder, and HF_HUB_OFFLINE is set and the hub's cache lacks it"),
        ("nowhere.gguf", "No such file"),
    ],
)
def test_a_name_that_leads_nowhere(name: str, reason: str) -> None:
    refused(name, reason)


def test_a_folder_that_is_no_model_folder(tmp_path: Path) -> None:
    refused(tmp_path, "has no config.json$")
    (tmp_path / "weights.gguf").touch()
    refused(tmp_path, r"it holds weights\.gguf: give that file")
    refused(tmp_path / "weights.gguf", "not a GGUF file")
    (tmp_path / "model.bin").touch()
    refused(tmp_path / "model.bin", "give the folder that it lies in")


def test_damaged_or_missing_files(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text("{")
    refused(folder, "its configuration cannot be read: .*not a valid JSON")
    (folder / "config.json").write_text('{"model_type": "unheard_of"}')
    refused(folder, "its configuration cannot be read: .*unheard_of")
    (folder / "config.json").write_text(config)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(folder, "its weights cannot be read")
    weights.unlink()
    refused(folder, "its weights cannot be read: .*model.safetensors")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    refused(folder, "its tokenizer cannot be read")


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    files = cast(Any, safetensors_torch)
    weights = files.load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    kept = {key: value for key, value in weights.items() if key != name}
    files.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    refused(folder, f"1 weights are missing, for example {name}")
    files.save_file(kept | {name: torch.zeros(3, 3)}, folder / "model.safetensors", {"format": "pt"})
    refused(folder, f"1 weights do not have the shape .* for example {name}")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    T5Config(vocab_size=108, d_model=8).save_pretrained(tmp_path)
    refused(tmp_path, "t5 is an encoder-decoder")


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    edit(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    refused(folder, "its weights are quantised")


def test_a_context_of_unknown_length_is_refused(tmp_path: Path) -> None:
    config = SimpleNamespace(max_position_embeddings=None)
    with pytest.raises(ModelError, match="does not say how long its context is"):
        loading._context_length(tmp_path, config)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:63", "mps:9"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    refused(save_tiny_model(tmp_path), f"device {device}: not usable here", device=device)


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    weights = safetensors_torch.load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    safetensors_torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, "model.norm.weight holds NaN or infinity")


def test_an_error_that_goes_on_after_a_colon_is_told_on() -> None:
    assert first_line(ValueError("none of:\n  (1) a file\n  (2) a folder")) == "none of: (1) a file"
    assert len(first_line(ValueError("x" * 5000))) == 300
    assert first_line(ValueError()) == "ValueError"
