"""Adapters on disk: written and read as peft does, continued where they were, refused when they misfit."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import peft
import pytest
import torch
from safetensors import torch as safetensors_torch
from torch import Tensor

from tests.adapters import adapted, disturb, logits_of, plain, trained_tensors
from tests.disk import file_size_limit
from tests.tiny import ARCHITECTURES, save_tiny_model, tiny_model
from turnpoint.errors import ModelError, RunFolderError
from turnpoint.models import base_state, export_adapter, load_adapter, load_model, merged_state
from turnpoint.models.adapter import CONFIG, WEIGHTS, Adapter
from turnpoint.models.decoder import Decoder

library, files = cast(Any, peft), cast(Any, safetensors_torch)
TYPES = [torch.float32, torch.bfloat16]


def read(folder: Path, model: Any) -> tuple[Decoder, Adapter]:
    adapter = load_adapter(model, folder=folder, base="models/tiny")
    return Decoder(model, vocab_size=model.config.vocab_size), adapter


def written(folder: Path, architecture: str = "llama", **options: Any) -> Decoder:
    """Writes a disturbed adapter to `folder`; returns its policy."""
    decoder, adapter = adapted(architecture, **options)
    disturb(decoder)
    export_adapter(decoder, adapter=adapter, base="models/tiny", folder=folder)
    return decoder


def written_by_peft(folder: Path, architecture: str = "llama", **config: Any) -> Any:
    """Writes an adapter with random A and B as peft alone does; returns peft's model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = library.LoraConfig(r=4, lora_alpha=6, init_lora_weights=False, **config)
        model = library.get_peft_model(tiny_model(architecture).eval(), made)
        model.save_pretrained(folder)
    model.set_attn_implementation("eager")
    return model.eval()


def law_of_peft(model: Any) -> Tensor:
    return model(input_ids=torch.arange(20, 44).unsqueeze(0)).logits[0]


# --- what goes round ----------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", TYPES)
@torch.no_grad()
def test_a_saved_adapter_goes_on_where_it_was(tmp_path: Path, architecture: str, dtype: torch.dtype) -> None:
    """Not wrapped in a fresh one: the logits are those of the policy that was saved, bit for bit."""
    before = written(tmp_path / "adapter", architecture, dtype=dtype)
    after, adapter = read(tmp_path / "adapter", tiny_model(architecture).to(dtype))
    assert torch.equal(logits_of(after), logits_of(before))
    assert adapter.notes == ()
    mine, theirs = trained_tensors(after), trained_tensors(before)
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@torch.no_grad()
def test_writing_what_was_read_gives_the_same_bytes(tmp_path: Path) -> None:
    written(tmp_path / "first", modules=["v_proj", "q_proj"])
    decoder, adapter = read(tmp_path / "first", tiny_model())
    export_adapter(decoder, adapter=adapter, base="models/tiny", folder=tmp_path / "second")
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    tree = json.loads((tmp_path / "first" / CONFIG).read_text())
    assert tree["target_modules"] == ["q_proj", "v_proj"]
    assert (tree["base_model_name_or_path"], tree["task_type"]) == ("models/tiny", "CAUSAL_LM")


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@torch.no_grad()
def test_peft_reads_what_export_wrote(tmp_path: Path, architecture: str) -> None:
    decoder = written(tmp_path / "adapter", architecture)
    base = tiny_model(architecture).eval()
    base.set_attn_implementation("eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = library.PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(law_of_peft(model), logits_of(decoder), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": "all-linear", "use_rslora": True},
        {"target_modules": "all-linear", "use_dora": True},
        {"target_modules": r".*\.1\..*proj.*"},
        {"target_modules": "all-linear", "rank_pattern": {"c_proj": 2, "down_proj": 2}},
    ],
    ids=["plain", "rslora", "dora", "pattern", "ranks"],
)
@torch.no_grad()
def test_what_peft_wrote_has_the_law_of_peft(
    tmp_path: Path, architecture: str, config: dict[str, Any]
) -> None:
    expected = law_of_peft(written_by_peft(tmp_path, architecture, **config))
    decoder, adapter = read(tmp_path, tiny_model(architecture))
    torch.testing.assert_close(logits_of(decoder), expected, rtol=1e-3, atol=1e-3)
    assert adapter.ranks == ((2, 4) if "rank_pattern" in config else (4,))
    merged = plain(architecture)
    merged.model.load_state_dict(merged_state(decoder.model))
    torch.testing.assert_close(logits_of(merged), expected, rtol=1e-3, atol=1e-3)
    state = base_state(decoder.model)
    for name, weight in trained_tensors(disturb(decoder)).items():
        weight.copy_(state[name])
    assert torch.equal(logits_of(decoder), logits_of(plain(architecture)))


def test_dropout_is_off_and_said(tmp_path: Path) -> None:
    written_by_peft(tmp_path, target_modules=["q_proj"], lora_dropout=0.25)
    decoder, adapter = read(tmp_path, tiny_model())
    assert adapter.notes == (
        f"adapter {tmp_path}: its dropout of 0.25 is off: sampler and trainer must see one law",
    )
    decoder.model.train()
    assert torch.equal(logits_of(decoder), logits_of(decoder))


@pytest.mark.parametrize(("name", "noted"), [("hub/Other-1B", True), ("hub/TINY", False), ("", False)])
def test_another_base_of_the_same_shape_is_noted(tmp_path: Path, name: str, noted: bool) -> None:
    written(tmp_path / "a")
    change(tmp_path / "a", base_model_name_or_path=name)
    _, adapter = read(tmp_path / "a", tiny_model())
    assert adapter.notes == (
        (f"adapter {tmp_path / 'a'}: was trained on {name} and goes on with models/tiny",) if noted else ()
    )


def test_an_export_of_an_adapter_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    for _ in range(2):
        written(tmp_path / "adapter")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(RunFolderError, match="is no export of turnpoint"):
        written(tmp_path / "other")


def test_a_full_disk_is_one_error_and_leaves_the_earlier_one(tmp_path: Path) -> None:
    written(tmp_path / "adapter")
    before = (tmp_path / "adapter" / WEIGHTS).read_bytes()
    with (
        file_size_limit(len(before) // 2),
        pytest.raises(RunFolderError, match="adapter: cannot be written: ") as caught,
    ):
        written(tmp_path / "adapter")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "adapter" / WEIGHTS).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


# --- refusals -----------------------------------------------------------------------------------


def change(folder: Path, **entries: Any) -> None:
    """Changes entries of the saved configuration."""
    tree = json.loads((folder / CONFIG).read_text()) | entries
    (folder / CONFIG).write_text(json.dumps(tree))


def changed(**entries: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, **entries)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def torn(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-40])

    return spoil


def a_list(folder: Path) -> None:
    (folder / CONFIG).write_text("[1]")


def tensors(edit: Callable[[dict[str, Tensor]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = files.load_file(folder / WEIGHTS)
        edit(state)
        files.save_file(state, folder / WEIGHTS)

    return spoil


def lose(state: dict[str, Tensor]) -> None:
    del state[min(state)]


def widen(state: dict[str, Tensor]) -> None:
    state[min(state)] = torch.zeros(4, 65)


def spread(state: dict[str, Tensor]) -> None:
    state["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = torch.zeros(4, 32)


def poison(state: dict[str, Tensor]) -> None:
    state[min(state)][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without(CONFIG), "there is no adapter_config.json"),
        (without(WEIGHTS), "there is no adapter_model.safetensors"),
        (torn(CONFIG), "adapter_config.json cannot be read"),
        (torn(WEIGHTS), "adapter_model.safetensors cannot be read"),
        (a_list, "adapter_config.json cannot be read"),
        (changed(peft_type="IA3"), "is of kind IA3; turnpoint trains LORA"),
        (changed(peft_type=None), "is of kind None"),
        (changed(modules_to_save=["lm_head"]), "modules_to_save = ['lm_head'] is more than"),
        (changed(bias="all"), "bias = 'all' is more than"),
        (changed(lora_bias=True), "lora_bias = True"),
        (changed(target_parameters=["experts.up"]), "target_parameters = ['experts.up']"),
        (changed(trainable_token_indices=[1]), "trainable_token_indices = [1]"),
        (changed(of_a_later_peft=3), "of_a_later_peft = 3 is more than"),
        (changed(init_lora_weights="pissa"), "init_lora_weights = 'pissa' changes the weights of the base"),
        (changed(r="four"), "does not fit the model"),
        (changed(r=0), "does not fit the model"),
        (changed(r=8), "belongs to another model: 28 tensors are missing or have another shape"),
        (changed(target_modules=["query"]), "does not fit the model"),
        (changed(target_modules=["embed_tokens"]), "adapts model.embed_tokens, which is no linear layer"),
        (changed(target_modules=["norm"]), "does not fit the model"),
        (changed(target_modules=["q_proj"]), "no place for 24 of its tensors"),
        (tensors(lose), "belongs to another model: 1 tensors are missing"),
        (tensors(widen), "belongs to another model: 1 tensors are missing or have another shape"),
        (tensors(spread), "no place for 1 of its tensors, for example model.layers.7"),
        (tensors(poison), "holds NaN or infinity"),
    ],
)
def test_a_folder_that_cannot_be_continued_is_refused_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "adapter"
    written(folder)
    spoil(folder)
    with pytest.raises(ModelError) as refused:
        read(folder, tiny_model())
    message = str(refused.value)
    assert message.startswith(f"adapter {folder}: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("rank", [1, 4])
def test_an_adapter_of_another_model_is_refused(tmp_path: Path, rank: int) -> None:
    written(tmp_path / "a", "gpt2", rank=rank)
    with pytest.raises(ModelError, match="does not fit the model"):
        read(tmp_path / "a", tiny_model("llama"))
    written(tmp_path / "b", "llama", rank=rank)
    wider = type(tiny_model())(tiny_model().config.__class__(**_twice(tiny_model().config.to_dict())))
    with pytest.raises(ModelError, match=r"belongs to another model|does not fit"):
        read(tmp_path / "b", wider)


def _twice(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"hidden_size": 2 * config["hidden_size"]}


def test_a_model_path_that_holds_an_adapter_says_so(tmp_path: Path) -> None:
    written(tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"it has no config.json; it holds an adapter"):
        load_model(tmp_path / "adapter")


def test_a_model_is_loaded_with_its_adapter_in_place(tmp_path: Path) -> None:
    written(tmp_path / "adapter")
    source = save_tiny_model(tmp_path / "tiny")
    bare = load_model(source, device="cpu", dtype="float32")
    assert bare.adapter is None
    policy = load_model(
        source,
        device="cpu",
        dtype="float32",
        adapt=lambda model: load_adapter(model, folder=tmp_path / "adapter", base="tiny"),
    )
    assert policy.adapter is not None
    assert policy.adapter.matrices == 14
    assert not torch.allclose(logits_of(policy.decoder), logits_of(bare.decoder), atol=1e-2)
