"""A decoder gives what transformers' own forward gives, or refuses the model."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import transformers

from tests.tiny import ARCHITECTURES, GEMMA_WINDOW, tiny_decoder, tiny_model
from turnpoint.errors import ModelError
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder

LENGTH = 3 * GEMMA_WINDOW


def row(length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(8, 100, (length,), generator=generator), torch.arange(length)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_logits_equal_transformers_own_attention(architecture: str) -> None:
    ids, positions = row()
    decoder = tiny_decoder(architecture)
    own = tiny_model(architecture).eval()
    own.set_attn_implementation("eager")
    expected = own(input_ids=ids.unsqueeze(0)).logits[0]
    actual = decoder.logits(decoder.hidden(ids, positions, CausalLayout()))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_laws_of_the_tiny_models_depend_on_what_they_read(architecture: str) -> None:
    ids, positions = row()
    decoder = tiny_decoder(architecture)
    changed = ids.clone()
    changed[-2] = 8 + (ids[-2] - 7) % 90
    outputs = [decoder.logits(decoder.hidden(x, positions, CausalLayout()))[-1] for x in (ids, changed)]
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-3)


def test_rows_that_the_tokenizer_does_not_know_are_impossible() -> None:
    model = tiny_model(vocab_size=128)
    decoder = Decoder(model, vocab_size=108)
    logits = decoder.logits(torch.zeros(2, 32))
    assert logits.shape == (2, 128)
    assert torch.isneginf(logits[:, 108:]).all()
    assert torch.isfinite(logits[:, :108]).all()


@torch.no_grad()
def test_dropout_in_the_configuration_is_off() -> None:
    decoder = tiny_decoder("gpt2")
    ids, positions = row()
    assert decoder.config.attn_pdrop > 0
    first, second = (decoder.hidden(ids, positions, CausalLayout()) for _ in range(2))
    assert torch.equal(first, second)


# --- refusals -----------------------------------------------------------------------------------


def built(kind: str, **settings: Any) -> Any:
    """Returns a random model of transformers' configuration class `kind`."""
    library = cast(Any, transformers)
    common: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "pad_token_id": 0}
    config = getattr(library, f"{kind}Config")(**common | settings)
    return library.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    "model",
    [
        lambda: built("Mamba", num_hidden_layers=2, state_size=4),
        lambda: built("Bloom", n_layer=2, n_head=2),
    ],
    ids=["state space", "attention of its own"],
)
def test_layers_outside_the_attention_interface_are_refused(model: Callable[[], Any]) -> None:
    with pytest.raises(ModelError, match="2 of 2 layers do not attend through"):
        Decoder(model(), vocab_size=64)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_model_that_ignores_positions_is_refused(architecture: str) -> None:
    model = tiny_model(architecture)
    forward = model.base_model.forward

    def deaf(*ids: Any, position_ids: Any, **rest: Any) -> Any:
        return forward(*ids, position_ids=torch.arange(position_ids.shape[1]).unsqueeze(0), **rest)

    model.base_model.forward = deaf
    with pytest.raises(ModelError, match="does not heed the positions"):
        Decoder(model, vocab_size=64)


def test_a_window_that_is_not_handed_to_the_attention_function_is_refused() -> None:
    model = tiny_model("gemma")
    model.base_model.layers[0].self_attn.sliding_window = None
    with pytest.raises(ModelError, match="layer 0 is sliding_attention but hands the window None"):
        Decoder(model, vocab_size=64)


def test_logits_that_are_made_in_an_unknown_way_are_refused() -> None:
    model = tiny_model()
    forward = model.forward

    def scaled(**row: Any) -> Any:
        output = forward(**row)
        output.logits = output.logits * 3
        return output

    model.forward = scaled
    with pytest.raises(ModelError, match="turns hidden states into logits in a way"):
        Decoder(model, vocab_size=64)
