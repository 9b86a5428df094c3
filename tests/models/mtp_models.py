"""Backbones and texts for draft heads: a few thousand parameters of each family."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor

from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_host import Host
from turnpoint.models.mtp_layout import MtpLayout, mtp_layout

ROWS = 64
_COMMON: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {  # by preset: classes and settings
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {**_EXPERTS, **_LATENT}),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", {**_EXPERTS, "head_dim": 8}),
    "qwen3_next": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _LINEAR),
    "mimo": ("Qwen2Config", "Qwen2ForCausalLM", {}),
}


def family_model(preset: str, **settings: Any) -> Any:
    """Returns a random two-layer model of the family that `preset` is for."""
    torch.manual_seed(0)
    config, model, own = FAMILIES[preset]
    return getattr(transformers, model)(getattr(transformers, config)(**{**_COMMON, **own, **settings}))


def family_host(preset: str, **settings: Any) -> Host:
    """Returns such a model as a host."""
    return Host(family_model(preset, **settings), vocab_size=ROWS)


def random_heads(host: Host, layout: MtpLayout | None = None, **changes: Any) -> MtpHeads:
    """Returns heads with random weights everywhere, of the plain layout with `changes` by default."""
    kind = "delta" if host.norms_are_deltas() else "weight"
    layout = replace(layout or mtp_layout("turnpoint"), norms=kind, **changes)
    heads = MtpHeads(host, layout)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in heads.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return heads


@dataclass(frozen=True, kw_only=True)
class Text:
    """Packed sequences of random tokens, and random states of a backbone."""

    token_ids: Tensor
    positions: Tensor
    hidden: Tensor
    lengths: list[int]

    def inputs(self) -> dict[str, Any]:
        """Returns them as `chain` takes them."""
        return vars(self)

    def parts(self) -> list[Text]:
        """Returns each sequence as a text of its own."""
        ends = [*itertools.accumulate(self.lengths, initial=0)]
        return [
            Text(
                token_ids=self.token_ids[start:end],
                positions=self.positions[start:end],
                hidden=self.hidden[start:end],
                lengths=[end - start],
            )
            for start, end in itertools.pairwise(ends)
        ]


def random_text(lengths: Sequence[int], *, width: int = 32, rows: int = ROWS) -> Text:
    """Returns a text of sequences of `lengths` tokens."""
    generator = torch.Generator().manual_seed(2)
    total = sum(lengths)
    return Text(
        token_ids=torch.randint(0, rows, (total,), generator=generator),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        hidden=torch.randn(total, width, generator=generator),
        lengths=list(lengths),
    )
