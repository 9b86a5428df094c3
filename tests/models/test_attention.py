"""Attention by hand-computed values: who is seen, softcap, sinks, shared key heads."""

import math
from typing import Any

import pytest
import torch

from turnpoint.models.attention import AttentionCall, CausalLayout, masked_attention, visible


def call(query: list[Any], key: list[Any], value: list[Any], **how: Any) -> AttentionCall:
    options: dict[str, Any] = {"scaling": 1.0, "window": None, "softcap": None, "sinks": None} | how
    tensors = {name: torch.tensor(x) for name, x in (("query", query), ("key", key), ("value", value))}
    return AttentionCall(layer=0, **tensors, **options)


def test_weights_are_the_softmax_of_scaled_products() -> None:
    asked = call([[[1.0], [2.0]]], [[[0.0], [math.log(3.0)]]], [[[4.0], [8.0]]], scaling=0.5)
    output = CausalLayout().attend(asked)
    # the second token: logits 0 and 2 * log 3 / 2 = log 3, so weights 1/4 and 3/4
    assert output.flatten().tolist() == pytest.approx([4.0, 0.25 * 4 + 0.75 * 8])


def test_softcap_bounds_the_logits() -> None:
    asked = call([[[0.0], [1.0]]], [[[0.0], [100.0]]], [[[0.0], [1.0]]], softcap=2.0)
    expected = math.exp(2.0) / (1 + math.exp(2.0))  # tanh(100 / 2) = 1
    assert CausalLayout().attend(asked)[0, 1].item() == pytest.approx(expected)


def test_a_sink_takes_probability_and_gives_no_value() -> None:
    asked = call([[[1.0]]], [[[0.0]]], [[[8.0]]], sinks=torch.tensor([math.log(3.0)]))
    assert CausalLayout().attend(asked).item() == pytest.approx(2.0)  # e^0 / (e^0 + 3) of 8


def test_heads_share_keys_in_order() -> None:
    values = [[[1.0]], [[2.0]]]
    asked = call([[[1.0]]] * 4, [[[1.0]]] * 2, values)
    assert CausalLayout().attend(asked).flatten().tolist() == [1.0, 1.0, 2.0, 2.0]


def test_values_may_be_narrower_than_keys() -> None:
    asked = call([[[1.0, 0.0]]] * 2, [[[1.0, 0.0]]], [[[5.0]]])
    assert CausalLayout().attend(asked).shape == (2, 1, 1)


def test_a_token_sees_a_window_up_to_and_including_itself() -> None:
    index = torch.arange(4)
    assert visible(index, index, None).tolist() == torch.ones(4, 4).tril().bool().tolist()
    assert visible(index, index, 2)[3].tolist() == [False, False, True, True]


def test_masked_keys_get_no_gradient() -> None:
    asked = call([[[1.0], [1.0]]], [[[1.0], [5.0]]], [[[1.0], [7.0]]])
    value = asked.value.clone().requires_grad_()
    mask = torch.tensor([[True, False], [True, False]])
    masked_attention(asked, asked.key, value, mask).sum().backward()
    assert value.grad is not None
    assert value.grad.flatten().tolist() == [2.0, 0.0]
