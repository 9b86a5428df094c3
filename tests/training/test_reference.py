"""A KL term: the reference is what it says, the pull its gradient, and the policy is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.tiny import tiny_decoder, tiny_model
from tests.training.groups import (
    FLAT,
    FORKED,
    Item,
    given,
    gradients,
    make_item,
    packed_gradients,
    plain_loss,
    relative_difference,
    row_logprobs,
)
from turnpoint.models.decoder import Decoder
from turnpoint.training import PackedStep, Trainer, pack_step
from turnpoint.training.prepare import Preparation
from turnpoint.training.reference import FrozenReference, Law, ModelReference, trained_weights
from turnpoint.training.step import Pull
from turnpoint.types import float_array

LAW = Law(temperature=1.0, chunk=128)


def items() -> list[Item]:
    return [make_item(FLAT, model=tiny_model(), seed=0), make_item(FORKED, model=tiny_model(), seed=1)]


def flat(item: Item) -> Item:
    """Returns the item as if every reward of its group were equal."""
    group, credits = item
    return group, [replace(credit, advantages=float_array(0 * given(credit))) for credit in credits]


def packed(some: list[Item], *, aggregation: str = "token") -> PackedStep:
    return pack_step(some, max_tokens=40, aggregation=aggregation, max_new_tokens=16, every_rollout=True)


def moved(decoder: Decoder, *, by: float) -> Decoder:
    with torch.no_grad():
        for index, weight in enumerate(decoder.model.parameters()):
            weight.add_(by * torch.sin(torch.arange(weight.numel()) + index).reshape(weight.shape))
    return decoder


def prepared(step: PackedStep, trainer: Trainer, reference: FrozenReference | ModelReference) -> PackedStep:
    return Preparation(logprobs=trainer.logprobs, reference=reference)(step)[0]


def test_the_policy_is_its_own_reference_at_the_start() -> None:
    """Whatever the policy is, KL and its gradient are 0 before the first update."""
    decoder = tiny_decoder()
    reference = FrozenReference(decoder=decoder, weights=trained_weights(decoder.model), law=LAW)
    trainer = Trainer(decoder, learning_rate=1e-3, pull=Pull(coef=1.0, divergence="reverse"))
    metrics = trainer.forward_backward(prepared(packed([flat(it) for it in items()]), trainer, reference))
    assert metrics["kl"].value == 0.0
    assert all(float(grad.abs().max()) == 0.0 for grad in gradients(decoder.model).values())


def test_frozen_weights_stay_what_they_were_and_leave_the_policy_alone() -> None:
    decoder = tiny_decoder()
    start = trained_weights(decoder.model)
    reference = FrozenReference(decoder=decoder, weights=start, law=LAW)
    (tree,) = pack_step(
        [make_item(FLAT, model=tiny_model())], max_tokens=99, aggregation="token", max_new_tokens=16
    ).trees
    before = reference(tree)
    moved(decoder, by=0.05)
    now = trained_weights(decoder.model)
    torch.testing.assert_close(reference(tree), before, rtol=0, atol=0)
    assert not torch.allclose(Trainer(decoder, learning_rate=1e-3).logprobs(tree), before)
    for name, weight in decoder.model.named_parameters():
        assert torch.equal(weight, now[name]), name
        assert weight.grad is None


def test_the_policy_is_put_back_when_the_reference_breaks() -> None:
    decoder = tiny_decoder()
    weights = {name: torch.zeros(1) for name, _ in decoder.model.named_parameters()}
    before = trained_weights(decoder.model)
    (tree,) = pack_step(
        [make_item(FLAT, model=tiny_model())], max_tokens=99, aggregation="token", max_new_tokens=16
    ).trees
    with pytest.raises(RuntimeError):
        FrozenReference(decoder=decoder, weights=weights, law=LAW)(tree)
    assert all(torch.equal(weight, before[name]) for name, weight in decoder.model.named_parameters())


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_policy_term_and_kl_are_averaged_alike(divergence: str, aggregation: str) -> None:
    """loss = policy term + coef * sum w rho estimator(l) / the same denominator, against plain rows."""
    some, other = items(), moved(tiny_decoder(), by=0.02)
    decoder = tiny_decoder()
    trainer = Trainer(decoder, learning_rate=1e-3, pull=Pull(coef=0.7, divergence=divergence))
    step = prepared(packed(some, aggregation=aggregation), trainer, ModelReference(decoder=other, law=LAW))
    metrics = trainer.forward_backward(step)

    model, plain = tiny_model().eval(), tiny_model().eval()
    plain.load_state_dict(other.model.state_dict())
    loss = plain_loss(model, some, aggregation=aggregation)
    lengths: list[int] = []
    sums: list[torch.Tensor] = []
    for group, credits in some:
        weights = {credit.segment: torch.tensor(credit.weights) for credit in credits}
        for member in group.members:
            ids = group.tree.path_ids(member.leaf)
            (segment,) = (group.tree.segments[it] for it in member.segments)
            mine = row_logprobs(model, ids)[-len(segment) :]
            theirs = row_logprobs(plain, ids)[-len(segment) :].detach()
            gap = mine - theirs
            estimate = gap**2 / 2 if divergence == "reverse" else torch.exp(-gap) - 1 + gap
            ratio = (mine - torch.tensor(segment.logprobs)).exp().detach()
            weight = weights[segment.id]
            if count := int((weight != 0).sum()):
                lengths.append(count)
                sums.append((weight * ratio * estimate).sum())
    denominators = {"token": sum(lengths), "sequence": len(lengths), "constant": 16 * len(lengths)}
    scaled = [
        part / length if aggregation == "sequence" else part
        for part, length in zip(sums, lengths, strict=True)
    ]
    loss = loss + 0.7 * torch.stack(scaled).sum() / denominators[aggregation]
    loss.backward()
    assert metrics["loss"].value == pytest.approx(float(loss.detach()), rel=1e-4)
    assert relative_difference(gradients(decoder.model), gradients(model)) < 1e-4


def test_groups_of_equal_rewards_are_still_pulled() -> None:
    """With KL on, a group without advantage has exactly the gradient of its KL term."""
    some = [flat(it) for it in items()]
    assert pack_step(some, max_tokens=40, aggregation="token", max_new_tokens=16).trees == ()
    other = moved(tiny_decoder(), by=0.02)
    halves: list[dict[str, torch.Tensor]] = []
    for coef in (0.5, 1.0):
        decoder = tiny_decoder()
        trainer = Trainer(decoder, learning_rate=1e-3, pull=Pull(coef=coef, divergence="reverse"))
        trainer.forward_backward(prepared(packed(some), trainer, ModelReference(decoder=other, law=LAW)))
        halves.append(gradients(decoder.model))
    doubled = {name: 2 * grad for name, grad in halves[0].items()}
    assert max(float(grad.abs().max()) for grad in doubled.values()) > 0
    assert relative_difference(halves[1], doubled) < 1e-5


def test_packing_every_rollout_changes_no_policy_gradient() -> None:
    some = items()
    some[0] = flat(some[0])
    _, lean = packed_gradients(pack_step(some, max_tokens=40, aggregation="token", max_new_tokens=16))
    _, whole = packed_gradients(packed(some))
    assert relative_difference(whole, lean) < 1e-5
