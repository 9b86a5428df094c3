"""A Hugging Face decoder as turnpoint sees it: ids and positions in, hidden states and logits out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turnpoint.errors import ModelError
from turnpoint.models.attention import (
    IMPLEMENTATION,
    AttentionCall,
    AttentionLayout,
    CausalLayout,
    register,
)


class Decoder:
    """Wraps a transformers causal language model; engine and trainer run the same code through it.

    `vocab_size` is the number of ids the tokenizer knows: logits of padded rows beyond it are -inf, in
    sampling and in training alike. Raises ModelError when the model cannot be run as one flat row
    or turns hidden states into logits in a way that is not understood.
    """

    def __init__(self, model: Any, *, vocab_size: int) -> None:
        register()
        model.set_attn_implementation(IMPLEMENTATION)
        model.eval()  # dropout is off everywhere: the sampler and the trainer must see one law
        self.model = model
        self.config = model.config.get_text_config(decoder=True)
        self.vocab_size = vocab_size
        self.backbone = model.base_model
        self.head = model.get_output_embeddings()
        self._softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self._scale = _logit_scale(self.config)
        self._check()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are stored in."""
        return self.head.weight.dtype

    @property
    def num_layers(self) -> int:
        """How many layers attend."""
        return self.config.num_hidden_layers

    def hidden(self, token_ids: Tensor, positions: Tensor, layout: AttentionLayout) -> Tensor:
        """Returns the last hidden states, [T, D], of a flat row [T] of ids at `positions` [T]."""
        return self.backbone(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            layout=layout,
        ).last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns float32 logits, [n, V], of hidden states [n, D]; -inf for ids the tokenizer lacks."""
        logits = self.head(hidden).float()
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        if logits.shape[-1] > self.vocab_size:
            logits[:, self.vocab_size :] = -torch.inf
        return logits

    @torch.no_grad()
    def _check(self) -> None:
        ids = torch.arange(min(4, self.vocab_size), device=self.device)
        row = {"input_ids": ids.unsqueeze(0), "position_ids": torch.arange(len(ids)).to(ids).unsqueeze(0)}
        layout = _RecordingLayout()
        try:
            expected = self.model(**row, use_cache=False, layout=layout).logits[0].float()
        except (TypeError, AttributeError, IndexError) as error:
            raise ModelError(
                f"{type(self.model).__name__} cannot be run as one flat row of tokens ({error}); turnpoint "
                f"runs decoders whose layers all attend through transformers' attention interface"
            ) from error
        if layout.layers != set(range(self.num_layers)):
            raise ModelError(
                f"{type(self.model).__name__}: {self.num_layers - len(layout.layers)} of {self.num_layers} "
                f"layers do not attend (linear attention or state space); their state cannot be forked, "
                f"and turnpoint does not run them yet"
            )
        actual = self.logits(self.hidden(ids, row["position_ids"][0], layout))
        known = slice(0, self.vocab_size)
        if not torch.allclose(actual[:, known], expected[:, known], rtol=1e-2, atol=1e-2):
            raise ModelError(
                f"{type(self.model).__name__} turns hidden states into logits in a way turnpoint does not "
                f"know (largest difference {(actual - expected)[:, known].abs().max():.3g})"
            )


class _RecordingLayout(AttentionLayout):
    def __init__(self) -> None:
        self.layers: set[int] = set()
        self._causal = CausalLayout()

    def attend(self, call: AttentionCall) -> Tensor:
        self.layers.add(call.layer)
        return self._causal.attend(call)


def _logit_scale(config: Any) -> float:
    """Returns the factor on logits: Cohere multiplies by one setting, Granite divides by another."""
    return getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
