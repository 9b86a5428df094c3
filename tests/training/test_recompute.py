from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.tiny import ARCHITECTURES, tiny_decoder, tiny_model
from tests.training.groups import FORKED, gradients, make_item, pack
from turnpoint.diagnosis.cost import measure_training
from turnpoint.errors import ModelError
from turnpoint.training import Trainer
from turnpoint.training.recompute import recomputable, recomputing


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_computed_again_give_the_same_gradient(architecture: str) -> None:
    plain, again = tiny_decoder(architecture), tiny_decoder(architecture)
    step = pack([make_item(FORKED, model=tiny_model(architecture))])
    Trainer(plain, learning_rate=1e-3).forward_backward(step)
    Trainer(again, learning_rate=1e-3, recompute=True).forward_backward(step)
    expected, found = gradients(plain.model), gradients(again.model)
    assert expected.keys() == found.keys()
    for name, grad in expected.items():
        assert torch.equal(found[name], grad), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_less_is_saved_and_what_one_layer_needs_is_counted(architecture: str) -> None:
    costs = [
        measure_training(
            Trainer(decoder, learning_rate=1e-3, recompute=recompute),
            decoder,
            most_tokens=64,
            context=256,
            trained=0.5,
            seconds=0.0,
        ).saved_bytes
        for decoder in [tiny_decoder(architecture)]
        for recompute in (False, True)
    ]
    (layers,) = {len(recomputable(tiny_decoder(architecture)))}
    plain, again = (cost.per_token + 64 * cost.per_score for cost in costs)
    assert plain / layers < again < 0.9 * plain  # of the two layers of a tiny model one is always there
    assert layers == 2


def test_layers_are_as_they_were_afterwards() -> None:
    layer = recomputable(tiny_decoder("llama"))[0]
    with pytest.raises(KeyError):
        _fail_while_recomputing(layer)
    assert "forward" not in vars(layer)
    own = nn.Identity().forward
    layer.forward = own  # as a hook of another library would leave it
    with recomputing([layer]):
        assert layer.forward is not own
    assert layer.forward is own


def _fail_while_recomputing(layer: nn.Module) -> None:
    with recomputing([layer]):
        assert "forward" in vars(layer)
        raise KeyError


def test_a_model_without_such_layers_is_refused() -> None:
    decoder = tiny_decoder("llama")
    decoder.backbone = nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"training\.recompute=false"):
        Trainer(decoder, learning_rate=1e-3, recompute=True)
