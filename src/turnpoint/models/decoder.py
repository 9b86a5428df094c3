"""A Hugging Face decoder as turnpoint sees it: ids and positions in, hidden states and logits out."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from turnpoint.errors import ModelError
from turnpoint.models.attention import (
    IMPLEMENTATION,
    AttentionCall,
    AttentionLayout,
    masked_attention,
    register,
    visible,
)


class Decoder:
    """Wraps a transformers causal language model; engine and trainer run the same code through it.

    `vocab_size` is the number of ids the tokenizer knows: logits of padded rows beyond it are -inf, in
    sampling and in training alike. Raises ModelError when the model cannot be run as one flat row whose
    order is given by positions, or turns hidden states into logits in a way that is not understood.
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
        return self.finish(self.head(hidden))

    def matrix(self) -> tuple[Tensor, Tensor | None, float] | None:
        """Returns weight, bias and factor that logits are made by, of ids the tokenizer knows.

        None where they are made in another way: by a softcap, or by a head with an adapter in it.
        """
        if type(self.head) is not nn.Linear or self._softcap is not None:
            return None
        weight, bias = self.head.weight, cast("Tensor | None", self.head.bias)
        if len(weight) > self.vocab_size:
            weight, bias = weight[: self.vocab_size], None if bias is None else bias[: self.vocab_size]
        return weight, bias, self._scale

    def finish(self, scores: Tensor) -> Tensor:
        """Returns the logits that the head's output, [n, V] in the type of the weights, stands for."""
        logits = scores.float()
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap is not None:
            logits = self._softcap * torch.tanh(logits / self._softcap)
        if logits.shape[-1] > self.vocab_size:
            logits[:, self.vocab_size :] = -torch.inf
        return logits

    @torch.no_grad()
    def _check(self) -> None:
        name = type(self.model).__name__
        positions = _there_and_back(8, self.device)
        ids = positions % self.vocab_size
        layout = _ThereAndBack()
        try:
            hidden = self.hidden(ids, positions, layout)
            output = self.model(
                input_ids=ids.unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                use_cache=False,
                layout=layout,
            )
        except (TypeError, AttributeError, IndexError) as error:
            raise ModelError(
                f"{name} cannot be run as one flat row of tokens ({error}); turnpoint "
                f"runs decoders whose layers all attend through transformers' attention interface"
            ) from error
        layout.check(name, self.config)
        states = hidden.float()
        if (states - states.flip(0)).norm() > 0.2 * states.norm():  # bfloat16: 0.01; deaf: 0.3
            raise ModelError(
                f"{name} does not heed the positions it is given; turnpoint packs sequences by them"
            )
        known = slice(0, self.vocab_size)
        actual, expected = self.logits(hidden)[:, known], output.logits[0].float()[:, known]
        if not torch.allclose(actual, expected, rtol=1e-2, atol=1e-2):
            raise ModelError(
                f"{name} turns hidden states into logits in a way turnpoint does not "
                f"know (largest difference {(actual - expected).abs().max():.3g})"
            )


def _there_and_back(length: int, device: torch.device) -> Tensor:
    index = torch.arange(length, device=device)
    return torch.minimum(index, length - 1 - index)


class _ThereAndBack(AttentionLayout):
    """One sequence twice, forwards and then backwards: equal states if positions alone say the order."""

    def __init__(self) -> None:
        self.windows: dict[int, int | None] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        self.windows[call.layer] = call.window
        length = call.query.shape[1]
        positions = _there_and_back(length, call.query.device)
        copy = torch.arange(length, device=call.query.device) * 2 // length
        mask = visible(positions, positions, call.window) & (copy.unsqueeze(-1) == copy)
        return masked_attention(call, call.key, call.value, mask)

    def check(self, name: str, config: Any) -> None:
        """Raises ModelError for layers that did not attend, or whose reach is not what the config says."""
        silent = set(range(config.num_hidden_layers)) - set(self.windows)
        if silent:
            raise ModelError(
                f"{name}: {len(silent)} of {config.num_hidden_layers} layers do not attend through "
                f"transformers' attention interface (linear attention, a state space, or code of their own); "
                f"turnpoint cannot fork their state and does not run them"
            )
        kinds: list[str] = getattr(config, "layer_types", None) or []
        for layer, kind in enumerate(kinds):
            if kind != ("full_attention" if self.windows[layer] is None else "sliding_attention"):
                raise ModelError(
                    f"{name}: layer {layer} is {kind} but hands the window {self.windows[layer]} to the "
                    f"attention function; turnpoint runs full and sliding windows that are handed over"
                )


def _logit_scale(config: Any) -> float:
    """Returns the factor on logits: Cohere multiplies by one setting, Granite divides by another."""
    return getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
