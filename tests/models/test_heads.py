"""A decoder's head as a loss takes it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.tiny import ARCHITECTURES, tiny_decoder
from turnpoint.errors import ModelError
from turnpoint.models.heads import linear_head


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gives_the_logits_of_the_decoder(architecture: str) -> None:
    decoder = tiny_decoder(architecture)
    decoder.vocab_size -= 3  # as if the last rows were padding
    hidden = torch.randn(5, decoder.head.weight.shape[1])
    head = linear_head(decoder)
    assert torch.equal(head(hidden), decoder.logits(hidden))
    assert head(hidden)[:, -3:].isneginf().all()
    assert head.weight is decoder.head.weight


def test_refuses_a_head_that_is_more_than_its_weight() -> None:
    decoder = tiny_decoder()
    decoder.head = nn.Sequential(decoder.head)
    with pytest.raises(ModelError, match="the output head is a Sequential, not a plain linear layer"):
        linear_head(decoder)
