"""What a teacher holds, against what its tensors take."""

from __future__ import annotations

import torch

from tests.adapters import adapted, trained_tensors
from tests.tiny import tiny_decoder
from turnpoint.diagnosis.teacher_memory import memory_of_model, memory_of_twin
from turnpoint.models.packed import packed_bytes
from turnpoint.models.twin import twin


def test_a_model_of_its_own() -> None:
    decoder = tiny_decoder()
    found = memory_of_model("big", decoder, cached=100, visits=True)
    assert found.weights == 4 * sum(it.numel() for it in decoder.model.parameters())
    assert (found.packed, found.averages, found.shares) == (packed_bytes(decoder), 0, False)
    # two layers of 2 key-value heads of 8 + 8 numbers, and a hidden state of 32, in float32
    assert found.cache == 100 * 4 * (2 * 2 * 16 + 32)
    assert found.total == found.weights + found.packed + found.cache
    assert found.line().startswith("big: 0.1 MiB of weights, ")
    assert found.line().endswith("prefixes of at most 0 MiB, while it speaks")


def test_a_twin_of_a_policy_with_an_adapter_holds_the_adapter_alone() -> None:
    decoder, adapter = adapted(dtype=torch.bfloat16)
    found = memory_of_twin("slow", twin(decoder), cached=0, averaged=True)
    own = sum(it.numel() for it in trained_tensors(decoder).values())
    assert own == adapter.parameters
    assert (found.weights, found.averages, found.packed) == (2 * own, 4 * own, 0)
    assert "of weights beside the policy's, " in found.line()
    assert "of averages in float32, " in found.line()


def test_in_float32_the_weights_are_the_average() -> None:
    found = memory_of_twin("slow", twin(tiny_decoder()), cached=0, averaged=True)
    assert (found.averages, found.shares) == (0, False)
    assert memory_of_twin("old", twin(tiny_decoder()), cached=0, averaged=False).averages == 0
