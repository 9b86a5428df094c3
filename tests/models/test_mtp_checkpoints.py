"""Draft heads by the names of their families: out of a file and back, to the bit; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.models.mtp_models import FAMILIES, ROWS, family_host, random_heads, random_text
from turnpoint.errors import ModelError
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_checkpoints import checkpoint_state, read_checkpoint, read_checkpoint_folder
from turnpoint.models.mtp_host import Host
from turnpoint.models.mtp_layout import mtp_layout

D, WIDE, E = 32, 48, 16  # sizes: hidden, of the feed-forward, of an expert


def feed_forward(stem: str, size: int) -> dict[str, list[int]]:
    return {
        f"{stem}.gate_proj.weight": [size, D],
        f"{stem}.up_proj.weight": [size, D],
        f"{stem}.down_proj.weight": [D, size],
    }


def norms(*names: str) -> dict[str, list[int]]:
    return {f"{name}.weight": [D] for name in names}


def grouped_attention(stem: str, *, bias: bool = False, gate: int = 1) -> dict[str, list[int]]:
    shapes = {"q_proj": [gate * D, D], "k_proj": [D // 2, D], "v_proj": [D // 2, D], "o_proj": [D, D]}
    weights = {f"{stem}.{name}.weight": shape for name, shape in shapes.items()}
    biases = {f"{stem}.{name}.bias": shapes[name][:1] for name in ("q_proj", "k_proj", "v_proj")}
    return weights | (biases if bias else {})


def experts(stem: str) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {
        f"{stem}.gate.weight": [4, D],
        f"{stem}.gate.e_score_correction_bias": [4],
    }
    for number in range(4):
        shapes |= feed_forward(f"{stem}.experts.{number}", E)
    return shapes | feed_forward(f"{stem}.shared_experts", E)


def deepseek_like(attention: dict[str, list[int]]) -> dict[str, list[int]]:
    stem = "model.layers.2"  # of a backbone of two layers
    return {
        **norms(*(f"{stem}.{it}" for it in ("enorm", "hnorm", "shared_head.norm"))),
        **norms(*(f"{stem}.{it}" for it in ("input_layernorm", "post_attention_layernorm"))),
        f"{stem}.eh_proj.weight": [D, 2 * D],
        f"{stem}.embed_tokens.weight": [ROWS, D],
        f"{stem}.shared_head.head.weight": [ROWS, D],
        **attention,
        **experts(f"{stem}.mlp"),
    }


LATENT = {
    "q_a_proj.weight": [8, D],
    "q_a_layernorm.weight": [8],
    "q_b_proj.weight": [48, 8],
    "kv_a_proj_with_mqa.weight": [12, D],
    "kv_a_layernorm.weight": [8],
    "kv_b_proj.weight": [64, 8],
    "o_proj.weight": [D, D],
}
QWEN, MIMO = "mtp.layers.0", "model.mtp_layers.0"
PUBLISHED: dict[str, dict[str, list[int]]] = {  # the names in the files that the families publish
    "deepseek_v3": deepseek_like({f"model.layers.2.self_attn.{name}": it for name, it in LATENT.items()}),
    "glm4_moe": deepseek_like(grouped_attention("model.layers.2.self_attn")),
    "qwen3_next": {
        "mtp.fc.weight": [D, 2 * D],
        **norms("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
        **norms(f"{QWEN}.input_layernorm", f"{QWEN}.post_attention_layernorm"),
        **grouped_attention(f"{QWEN}.self_attn", gate=2),
        f"{QWEN}.self_attn.q_norm.weight": [8],
        f"{QWEN}.self_attn.k_norm.weight": [8],
        **feed_forward(f"{QWEN}.mlp", WIDE),
    },
    "mimo": {
        f"{MIMO}.input_proj.weight": [D, 2 * D],
        **norms(*(f"{MIMO}.{it}" for it in ("token_layernorm", "hidden_layernorm", "final_layernorm"))),
        **norms(*(f"{MIMO}.{it}" for it in ("input_layernorm", "post_attention_layernorm"))),
        **grouped_attention(f"{MIMO}.self_attn", bias=True),
        **feed_forward(f"{MIMO}.mlp", WIDE),
    },
}


def published(host: Host, preset: str) -> dict[str, Tensor]:
    """Returns random tensors by the published names; the shared ones are the backbone's."""
    generator = torch.Generator().manual_seed(3)
    state = {name: torch.randn(shape, generator=generator) for name, shape in PUBLISHED[preset].items()}
    for name in state:
        if name.endswith("embed_tokens.weight"):
            state[name] = host.embedding_weight.detach().clone()
        if name.endswith("shared_head.head.weight"):
            head: Any = host.head
            state[name] = head.weight.detach().clone()
    return state


@pytest.mark.parametrize("preset", FAMILIES)
def test_a_published_file_comes_back_to_the_bit(preset: str, tmp_path: Path) -> None:
    host = family_host(preset)
    state = published(host, preset)
    backbone = {"model.layers.1.input_layernorm.weight": torch.ones(D), "model.norm.weight": torch.ones(D)}
    names = sorted(state)
    safetensors.torch.save_file(
        backbone | {name: state[name] for name in names[::2]}, tmp_path / "model-1.safetensors"
    )
    safetensors.torch.save_file({name: state[name] for name in names[1::2]}, tmp_path / "model-2.safetensors")
    heads = read_checkpoint_folder(host, preset, folder=tmp_path)
    again = checkpoint_state(heads)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert all(it.requires_grad for it in heads.parameters())
    assert heads.trained_depth == 1
    safetensors.torch.save_file(again, tmp_path / "again.safetensors")
    assert safetensors.torch.load_file(tmp_path / "again.safetensors").keys() == state.keys()
    chain = heads.chain(**random_text([7]).inputs(), depth=2).hidden
    assert bool(chain.isfinite().all())


def test_a_tensor_arrives_where_its_name_says() -> None:
    """A round trip would hide two names that were swapped both ways."""
    host = family_host("deepseek_v3")
    state = published(host, "deepseek_v3")
    heads = read_checkpoint(host, "deepseek_v3", state, source="it")
    fusion: Any = heads.fusions[0]
    block: Any = heads.blocks[0]
    stem = "model.layers.2"
    assert torch.equal(fusion.embedding_norm.weight, state[f"{stem}.enorm.weight"])
    assert torch.equal(fusion.hidden_norm.weight, state[f"{stem}.hnorm.weight"])
    assert torch.equal(fusion.final_norm.weight, state[f"{stem}.shared_head.norm.weight"])
    assert torch.equal(fusion.projection.weight, state[f"{stem}.eh_proj.weight"])
    for number in range(4):
        gate, up = block.mlp.experts.gate_up_proj[number].split(E)
        assert torch.equal(gate, state[f"{stem}.mlp.experts.{number}.gate_proj.weight"])
        assert torch.equal(up, state[f"{stem}.mlp.experts.{number}.up_proj.weight"])
    assert torch.equal(
        block.mlp.gate.e_score_correction_bias, state[f"{stem}.mlp.gate.e_score_correction_bias"]
    )
    mimo = family_host("mimo")
    state = published(mimo, "mimo")
    fusion = read_checkpoint(mimo, "mimo", state, source="it").fusions[0]
    assert torch.equal(fusion.embedding_norm.weight, state[f"{MIMO}.token_layernorm.weight"])
    assert torch.equal(fusion.hidden_norm.weight, state[f"{MIMO}.hidden_layernorm.weight"])
    qwen = family_host("qwen3_next")
    state = published(qwen, "qwen3_next")
    fusion = read_checkpoint(qwen, "qwen3_next", state, source="it").fusions[0]
    assert torch.equal(fusion.embedding_norm.weight, state["mtp.pre_fc_norm_embedding.weight"])
    assert torch.equal(fusion.final_norm.weight, state["mtp.norm.weight"])


def test_the_presets_are_wired_as_the_families_are() -> None:
    wiring = {
        name: (it.order, it.hidden, it.carried, it.zero_first, it.norms)
        for name, it in ((name, mtp_layout(name)) for name in FAMILIES)
    }
    deepseek = ("embedding_first", "pre_norm", "pre_norm", True, "weight")
    assert wiring == {
        "deepseek_v3": deepseek,
        "glm4_moe": deepseek,
        "qwen3_next": ("embedding_first", "post_norm", "post_norm", False, "delta"),
        "mimo": ("hidden_first", "pre_norm", "post_norm", True, "weight"),
    }


@pytest.mark.parametrize("preset", ["deepseek_v3", "qwen3_next", "mimo"])
def test_several_layers_are_counted_and_numbered(preset: str) -> None:
    host = family_host(preset)
    heads = random_heads(host, mtp_layout(preset, layers=2))
    state = checkpoint_state(heads)
    second = {"deepseek_v3": "model.layers.3", "qwen3_next": "mtp.layers.1", "mimo": "model.mtp_layers.1"}[
        preset
    ]
    assert f"{second}.input_layernorm.weight" in state
    assert len(heads.fusions) == (1 if preset == "qwen3_next" else 2)
    again = read_checkpoint(host, preset, state, source="it")
    assert again.layout.layers == 2
    assert all(torch.equal(it, state[name]) for name, it in checkpoint_state(again).items())


def test_copies_of_what_is_shared_may_be_left_out() -> None:
    host = family_host("glm4_moe")
    state = published(host, "glm4_moe")
    alone = {name: it for name, it in state.items() if "embed_tokens" not in name and ".head." not in name}
    assert len(alone) == len(state) - 2
    heads = read_checkpoint(host, "glm4_moe", alone, source="it")
    assert checkpoint_state(heads, shared=False).keys() == alone.keys()
    assert checkpoint_state(heads).keys() == state.keys()


def broken(state: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    stem = "model.layers.2"
    gate = f"{stem}.mlp.experts.3.gate_proj.weight"
    match how:
        case "missing":
            del state[gate]
        case "unknown":
            state[f"{stem}.self_attn.sinks"] = torch.zeros(4)
        case "scaled":
            state[f"{stem}.eh_proj.weight_scale_inv"] = torch.zeros(1)
        case "misshapen":
            state[gate] = torch.zeros(E, D + 1)
        case "damaged":
            state[f"{stem}.enorm.weight"][3] = torch.nan
        case "quantised":
            state[f"{stem}.eh_proj.weight"] = state[f"{stem}.eh_proj.weight"].to(torch.float8_e4m3fn)
        case "other embedding":
            state[f"{stem}.embed_tokens.weight"][5, 5] += 1.0
        case "other head":
            state[f"{stem}.shared_head.head.weight"][5, 5] += 1.0
        case _:
            raise ValueError(how)
    return state


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "1 tensors are missing, for example model.layers.2.mlp.experts.3.gate_proj.weight"),
        ("unknown", "1 tensors have no place, for example model.layers.2.self_attn.sinks"),
        ("scaled", r"model.layers.2.eh_proj.weight_scale_inv \(their weights are quantised"),
        (
            "misshapen",
            r"experts.3.gate_proj.weight is of shape \[16, 33\], for this backbone it would be \[16, 32\]",
        ),
        ("damaged", "model.layers.2.enorm.weight holds NaN or infinity"),
        ("quantised", r"model.layers.2.eh_proj.weight is quantised \(torch.float8_e4m3fn\)"),
        ("other embedding", "model.layers.2.embed_tokens.weight is not the backbone's"),
        ("other head", "model.layers.2.shared_head.head.weight is not the backbone's"),
    ],
)
def test_a_tensor_that_does_not_belong_is_named_in_one_line(how: str, message: str) -> None:
    host = family_host("deepseek_v3")
    state = broken(published(host, "deepseek_v3"), how)
    with pytest.raises(ModelError, match=message) as caught:
        read_checkpoint(host, "deepseek_v3", state, source="model X")
    assert str(caught.value).startswith("model X: draft heads of layout deepseek_v3: ")
    assert "\n" not in str(caught.value)


def test_heads_of_another_family_and_no_heads_at_all(tmp_path: Path) -> None:
    host = family_host("glm4_moe")
    with pytest.raises(ModelError, match=r"tensors are missing, for example model\.layers\.2"):
        read_checkpoint(host, "glm4_moe", published(family_host("mimo"), "mimo"), source="it")
    with pytest.raises(
        ModelError, match="draft heads of layout 'eagle': not known; known are turnpoint, deepseek"
    ):
        read_checkpoint(host, "eagle", {}, source="it")
    safetensors.torch.save_file({"model.norm.weight": torch.ones(D)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="holds no draft heads by the names of glm4_moe"):
        read_checkpoint_folder(host, "glm4_moe", folder=tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read"):
        read_checkpoint_folder(host, "glm4_moe", folder=tmp_path)


def test_heads_come_in_the_type_of_the_backbone() -> None:
    host = Host(family_host("mimo").model.to(torch.bfloat16), vocab_size=ROWS)
    state = {name: it.to(torch.bfloat16) for name, it in published(host, "mimo").items()}
    heads = read_checkpoint(host, "mimo", state, source="it")
    assert {it.dtype for it in heads.parameters()} == {torch.bfloat16}
    assert all(torch.equal(it, state[name]) for name, it in checkpoint_state(heads).items())
    assert isinstance(heads, MtpHeads)
