"""Heads that learn beside a policy leave its gradients alone, to the last bit."""

from __future__ import annotations

import torch

from tests.tiny import tiny_decoder, tiny_model
from tests.training.groups import FLAT, gradients, make_credits, make_group, pack, sampled_by
from turnpoint.drafting.online import OnlineHeads
from turnpoint.drafting.texts import drafts_of, group_texts
from turnpoint.models.decoder import Decoder
from turnpoint.models.mtp_fresh import fresh_heads
from turnpoint.training import Trainer
from turnpoint.types import Group


def quiet(texts: int, tokens: int) -> None:
    """Nobody watches."""


def online(decoder: Decoder, *, every: int = 1, tokens: int = 10_000) -> OnlineHeads:
    return OnlineHeads(
        fresh_heads(decoder),
        decoder,
        depth=2,
        every=every,
        tokens=tokens,
        batch_tokens=24,
        learning_rate=1e-2,
        temperature=1.0,
        seed=0,
    )


def sampled() -> list[Group]:
    model = tiny_model().eval()
    return [sampled_by(model, make_group(FLAT, seed=seed, name=f"g{seed}"), noise=0.0) for seed in range(3)]


def policy_bits(learning: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Gradients of a second step and weights after it, with and without heads that learn in between."""
    decoder, groups = tiny_decoder(), sampled()
    trainer, heads = Trainer(decoder, learning_rate=1e-3), online(decoder)
    step = pack([(group, make_credits(group, holes=False)) for group in groups])
    trainer.forward_backward(step)
    trainer.optim_step()
    if learning:
        found = heads.learn(1, groups, progress=quiet)
        assert (found["draft/trained_tokens"].value or 0) > 0
        assert gradients(decoder.model) == {}
    trainer.forward_backward(step)
    found_gradients = {name: it.clone() for name, it in gradients(decoder.model).items()}
    trainer.optim_step()
    return found_gradients, trainer.state_dict()


def test_the_policy_is_the_same_to_the_last_bit() -> None:
    for mine, theirs in zip(policy_bits(True), policy_bits(False), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(it, theirs[name]) for name, it in mine.items())


def test_tokens_are_bounded_and_each_text_is_learned_from_once() -> None:
    groups = sampled()
    texts = [it for group in groups for it in group_texts(group) if drafts_of(it)]
    longest, whole = max(map(len, texts)), sum(map(len, texts))
    for bound in (1, 2 * longest, 10 * whole):
        learned = online(tiny_decoder(), tokens=bound).learn(1, groups, progress=quiet)
        tokens = learned["draft/trained_tokens"].value or 0.0
        assert 0 < tokens <= max(bound, longest)
        assert tokens == whole or bound < whole
    nothing = online(tiny_decoder()).learn(1, [], progress=quiet)
    assert nothing["draft/trained_tokens"].value == 0


def test_state_goes_on_bit_for_bit() -> None:
    groups, whole, first = sampled(), online(tiny_decoder()), online(tiny_decoder())
    for step in (1, 2):
        whole.learn(step, groups, progress=quiet)
    first.learn(1, groups, progress=quiet)
    second = online(tiny_decoder())
    second.load_state_dict({name: it.clone() for name, it in first.state_dict().items()})
    second.learn(2, groups, progress=quiet)
    left, right = whole.state_dict(), second.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(it, right[name]) for name, it in left.items())
    assert [online(tiny_decoder(), every=3).due(step) for step in range(1, 7)] == [
        False,
        False,
        True,
        False,
        False,
        True,
    ]
