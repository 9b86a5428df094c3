"""A decoder's head as losses over the vocabulary take it."""

from __future__ import annotations

from torch import nn

from turnpoint.errors import ModelError
from turnpoint.losses.chunked import LinearHead
from turnpoint.models.decoder import Decoder


def linear_head(decoder: Decoder) -> LinearHead:
    """Returns the head of `decoder`, sharing its weights: `linear_head(d)(hidden)` is `d.logits(hidden)`.

    Raises ModelError for a head that is more than one product, such as one with an adapter of its own,
    whose weight alone would be another model's.
    """
    head = decoder.head
    if type(head) is not nn.Linear:
        raise ModelError(
            f"{type(decoder.model).__name__}: the output head is a {type(head).__name__}, not a plain linear "
            f"layer; merge or leave out what adapts it to distil over the whole vocabulary"
        )
    return LinearHead(head.weight, head.bias, finish=decoder.finish)


def detached_head(decoder: Decoder) -> LinearHead:
    """Returns the head of `decoder` for drafts: the same weights, now and later, that no loss can train."""
    head = linear_head(decoder)
    bias = None if head.bias is None else head.bias.detach()
    return LinearHead(head.weight.detach(), bias, finish=head.finish)
