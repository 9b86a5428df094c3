"""Draft heads in a folder of their own: what comes back, and for whom they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.models.mtp_models import FAMILIES, ROWS, family_model, random_heads, random_text
from tests.tiny import tiny_decoder, tiny_model
from turnpoint.errors import ModelError, RunFolderError
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_checkpoints import checkpoint_state
from turnpoint.models.mtp_folder import DESCRIPTION, WEIGHTS, load_checkpoint_heads, load_heads, save_heads
from turnpoint.models.mtp_host import host_of
from turnpoint.models.mtp_layout import PRESETS, ParallelLayout, layout_tree, mtp_layout, read_layout
from turnpoint.models.mtp_parallel import ParallelHeads


@pytest.mark.parametrize("preset", ["turnpoint", "deepseek_v3", "glm4_moe", "mimo"])
def test_heads_come_back_to_the_bit(preset: str, tmp_path: Path) -> None:
    model = tiny_model("gpt2") if preset == "turnpoint" else family_model(preset)
    decoder = Decoder(model, vocab_size=model.config.vocab_size)
    heads = random_heads(host_of(decoder), mtp_layout(preset, layers=2), attention="same_depth")
    heads.trained_depth = 3
    assert save_heads(heads, tmp_path / "heads") == tmp_path / "heads"
    again = load_heads(decoder, tmp_path / "heads")
    assert isinstance(again, MtpHeads)
    assert again.layout == heads.layout
    assert again.trained_depth == 3
    state = heads.state_dict()
    assert all(torch.equal(it, state[name]) for name, it in again.state_dict().items())
    content = json.loads((tmp_path / "heads" / DESCRIPTION).read_text("utf-8"))
    assert content["layout"]["name"] == preset
    assert content["backbone"]["width"] == 32
    save_heads(heads, tmp_path / "heads")  # replaces its like
    assert sorted(it.name for it in (tmp_path / "heads").iterdir()) == [DESCRIPTION, WEIGHTS]


def test_what_is_the_backbones_is_not_saved(tmp_path: Path) -> None:
    model = family_model("deepseek_v3")
    decoder = Decoder(model, vocab_size=model.config.vocab_size)
    heads = MtpHeads(host_of(decoder), mtp_layout("deepseek_v3"))
    save_heads(heads, tmp_path / "heads")
    size = sum(it.numel() for it in heads.state_dict().values()) * 4
    assert size <= (tmp_path / "heads" / WEIGHTS).stat().st_size < size + 10_000


def test_parallel_heads_come_back(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    heads = ParallelHeads(host_of(decoder), ParallelLayout(depth=3), trained_depth=3)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_()
    save_heads(heads, tmp_path / "heads")
    again = load_heads(decoder, tmp_path / "heads")
    assert isinstance(again, ParallelHeads)
    hidden = random_text([5]).hidden
    assert torch.equal(again.draft(hidden, depth=3), heads.draft(hidden, depth=3))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_heads(MtpHeads(host_of(tiny_decoder()), mtp_layout("turnpoint")), tmp_path / "heads")


def test_another_backbone_is_refused_and_says_in_what(saved: Path) -> None:
    model = tiny_model()
    small = Decoder(model, vocab_size=model.config.vocab_size - 1)
    for decoder, message in (
        (tiny_decoder("qwen3"), "architecture 'LlamaForCausalLM', this one has 'Qwen3ForCausalLM'"),
        (small, f"vocabulary {model.config.vocab_size}, this one has {model.config.vocab_size - 1}"),
        (wide(tiny_model(vocab_size=90)), f"rows {model.config.vocab_size}, this one has 90"),
    ):
        with pytest.raises(ModelError, match=f"made for another backbone: {message}"):
            load_heads(decoder, saved, retrained=True)


def wide(model: Any) -> Decoder:
    return Decoder(model, vocab_size=model.config.vocab_size)


def test_other_weights_of_the_same_model_are_refused_unless_asked_for(saved: Path) -> None:
    decoder = tiny_decoder()
    load_heads(decoder, saved)
    decoder.model.get_input_embeddings().weight.data[3, 3] += 0.5
    with pytest.raises(ModelError, match=r"made for other weights than this backbone has .*retrained=True"):
        load_heads(decoder, saved)
    load_heads(decoder, saved, retrained=True)


def test_the_type_that_a_backbone_was_loaded_in_makes_no_difference(tmp_path: Path) -> None:
    model = tiny_model().to(torch.bfloat16)
    narrow = Decoder(model, vocab_size=model.config.vocab_size)
    save_heads(MtpHeads(host_of(narrow), mtp_layout("turnpoint")), tmp_path / "heads")
    full = Decoder(tiny_model().to(torch.bfloat16).float(), vocab_size=model.config.vocab_size)
    heads = load_heads(full, tmp_path / "heads")
    assert {it.dtype for it in heads.parameters()} == {torch.float32}


def overwritten(name: str, content: bytes | None) -> Callable[[Path], None]:
    def overwrite(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return overwrite


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tree = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        change(tree)
        (folder / DESCRIPTION).write_text(json.dumps(tree), "utf-8")

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (overwritten(WEIGHTS, None), f"there is no {WEIGHTS}"),
        (overwritten(DESCRIPTION, None), f"there is no {DESCRIPTION}"),
        (overwritten(DESCRIPTION, b"{"), f"{DESCRIPTION} cannot be read"),
        (overwritten(WEIGHTS, b"no tensors"), f"{WEIGHTS}: cannot be read"),
        (edited(lambda it: it.update(format=2)), "is not of format 1"),
        (edited(lambda it: it.pop("layout")), "is not of format 1"),
        (edited(lambda it: it.update(trained_depth=-1)), "does not say whose heads"),
        (edited(lambda it: it["layout"].update(order="sideways")), "layout is not one .*order = 'sideways'"),
        (edited(lambda it: it["layout"].update(carry="raw")), "layout is not one .*keys carry"),
        (edited(lambda it: it["layout"].update(layers="one")), "layout is not one .*layers = 'one'"),
        (edited(lambda it: it["layout"]["names"].pop("layer")), "layout is not one .*keys layer"),
        (edited(lambda it: it.update(layout=3)), "layout is not one"),
        (edited(lambda it: it["layout"].update(layers=2)), "tensors are missing, for example layers.1"),
        (edited(lambda it: it.update(layout={"depth": 0, "name": "parallel"})), "layout is not one"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(
    saved: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(saved)
    with pytest.raises(ModelError, match=message) as caught:
        load_heads(tiny_decoder(), saved)
    assert "\n" not in str(caught.value)


def test_parallel_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    save_heads(ParallelHeads(host_of(decoder), ParallelLayout(depth=2)), tmp_path / "heads")
    edited(lambda it: it["layout"].update(depth=3))(tmp_path / "heads")
    with pytest.raises(ModelError, match=r"blocks\.2\.bias is missing, has no place"):
        load_heads(decoder, tmp_path / "heads")


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    heads = MtpHeads(host_of(tiny_decoder()), mtp_layout("turnpoint"))
    with pytest.raises(RunFolderError, match="exists and holds no draft heads"):
        save_heads(heads, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(RunFolderError, match="cannot be written"):
        save_heads(heads, tmp_path / "thesis.txt" / "heads")


def test_every_preset_can_be_read_back_from_json() -> None:
    assert set(FAMILIES) < set(PRESETS)
    for layout in [*PRESETS.values(), ParallelLayout(depth=4)]:
        assert read_layout(json.loads(json.dumps(layout_tree(layout))), source="it") == layout


def test_heads_inside_a_checkpoint_are_found_through_the_decoder(tmp_path: Path) -> None:
    decoder = Decoder(family_model("glm4_moe"), vocab_size=ROWS)
    state = checkpoint_state(random_heads(host_of(decoder), mtp_layout("glm4_moe")))
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    heads = load_checkpoint_heads(decoder, "glm4_moe", folder=tmp_path)
    assert all(torch.equal(it, state[name]) for name, it in checkpoint_state(heads).items())
