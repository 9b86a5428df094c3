"""A second set of weights beside the policy's: what trains once more, what is frozen shared."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from turnpoint.models.decoder import Decoder


def twin(decoder: Decoder) -> Decoder:
    """Returns a decoder with the law of `decoder` as it is now, whatever becomes of that one's weights.

    Only tensors that require a gradient are copied: of a policy with an adapter, the adapter's.
    """
    model: Any = decoder.model
    shared: dict[int, Any] = {id(it): it for it in model.parameters() if not it.requires_grad}
    return Decoder(copy.deepcopy(model, shared), vocab_size=decoder.vocab_size)


def own_weights(decoder: Decoder) -> dict[str, Tensor]:
    """Returns, by name, the tensors that a twin has to itself, detached; they are not copied."""
    weights = decoder.model.named_parameters()
    return {name: weight.detach() for name, weight in weights if weight.requires_grad}
