from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import ARCHITECTURES, tiny_decoder, tiny_model
from tests.training.groups import (
    FLAT,
    FORKED,
    TURNS,
    Item,
    given,
    gradients,
    listed,
    make_credits,
    make_group,
    make_item,
    pack,
    plain_loss,
    relative_difference,
    row_logprobs,
    sampled_by,
    with_teacher,
)
from turnpoint.errors import TrainingError
from turnpoint.metrics import Metrics, metric_values
from turnpoint.models.attention import CausalLayout
from turnpoint.models.decoder import Decoder
from turnpoint.training import PackedStep, Trainer
from turnpoint.types import SegmentCredit, float_array


def trainer(decoder: Decoder | None = None, *, learning_rate: float = 1e-3, **settings: Any) -> Trainer:
    return Trainer(decoder or tiny_decoder(), learning_rate=learning_rate, **settings)


def step_of(
    *shapes: Any, noise: float = 0.0, temperature: float = 1.0, architecture: str = "llama"
) -> PackedStep:
    model = tiny_model(architecture).eval()
    groups = [make_group(shape, seed=seed) for seed, shape in enumerate(shapes)]
    groups = [sampled_by(model, group, noise=0.0, temperature=temperature) for group in groups]
    return pack([(group, make_credits(group, holes=False)) for group in groups])


def number(metrics: Metrics, name: str) -> float:
    value = metrics[name].value
    assert value is not None
    return value


# --- log-probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_without_an_update_the_ratio_is_one(architecture: str, temperature: float) -> None:
    """The rows that gave the old log-probabilities saw no dropout, no padding and the same temperature."""
    step = step_of(FORKED, TURNS, temperature=temperature, architecture=architecture)
    decoder = tiny_decoder(architecture)
    ours = trainer(decoder, temperature=temperature)
    for tree in step.trees:
        torch.testing.assert_close(ours.logprobs(tree), tree.old_logprobs, rtol=1e-4, atol=1e-4)
    metrics = ours.forward_backward(step)
    assert number(metrics, "mismatch") < 1e-5
    assert number(metrics, "approx_kl") < 1e-6
    assert number(metrics, "clip_fraction") == 0.0


def test_logprobs_leave_no_gradient_behind() -> None:
    decoder = tiny_decoder()
    (tree,) = step_of(FLAT).trees
    assert not trainer(decoder).logprobs(tree).requires_grad
    assert gradients(decoder.model) == {}


# --- loss and gradient --------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gemma"])
def test_the_gradient_is_the_numerical_one(architecture: str) -> None:
    """The derivative along a direction, by central differences of the whole forward pass."""
    model = tiny_model(architecture).eval()
    step = pack([make_item(FORKED, model=model), make_item(TURNS, model=model, seed=1)], max_tokens=40)
    decoder = tiny_decoder(architecture)
    ours = trainer(decoder)
    ours.forward_backward(step)
    grads = {name: grad.clone() for name, grad in gradients(decoder.model).items()}
    torch.manual_seed(0)
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight", "model.norm.weight"):
        weight = decoder.model.get_parameter(name)
        direction = torch.sign(grads[name]) * torch.rand_like(weight)
        ends: list[float] = []
        for size in (1e-4, -1e-4):
            with torch.no_grad():
                weight.add_(direction, alpha=size)
            ends.append(number(ours.forward_backward(step), "loss"))
            with torch.no_grad():
                weight.sub_(direction, alpha=size)
        numerical = (ends[0] - ends[1]) / 2e-4
        assert numerical == pytest.approx(float((grads[name] * direction).sum()), rel=0.02)


@torch.no_grad()
def reference_laws(model: Any, ids: Any) -> Tensor:
    row = torch.tensor(ids.tolist()).unsqueeze(0)
    return torch.log_softmax(model(input_ids=row, use_cache=False).logits[0], dim=-1)


def test_metrics_are_means_over_trained_tokens() -> None:
    model = tiny_model().eval()
    item = make_item(FLAT, model=model)
    group, credits = item
    step = pack([item])
    metrics = trainer().forward_backward(step)
    entropies: list[float] = []
    mismatches: list[float] = []
    for credit in credits:
        segment = group.tree.segments[credit.segment]
        ids = group.tree.path_ids(segment.id)
        laws = reference_laws(model, ids)[5:]  # the prompt has six tokens
        for index, weight in enumerate(credit.weights.tolist()):
            if weight:
                entropies.append(float(-(laws[index].exp() * laws[index]).sum()))
                assert segment.logprobs is not None
                mismatches.append(abs(float(laws[index, ids[6 + index]]) - float(segment.logprobs[index])))
    assert number(metrics, "entropy") == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)
    assert number(metrics, "mismatch") == pytest.approx(sum(mismatches) / len(mismatches), rel=1e-3)
    assert number(metrics, "trained_tokens") == len(entropies)


def test_passes_add_up_until_a_step_is_taken() -> None:
    step = step_of(FLAT)
    decoder = tiny_decoder()
    ours = trainer(decoder)
    ours.forward_backward(step)
    once = {name: grad.clone() for name, grad in gradients(decoder.model).items()}
    ours.forward_backward(step)
    assert relative_difference(gradients(decoder.model), {name: 2 * it for name, it in once.items()}) < 1e-6
    ours.optim_step()
    assert gradients(decoder.model) == {}


def test_a_step_makes_good_tokens_likelier_and_bad_ones_rarer() -> None:
    step = step_of(FORKED)
    ours = trainer()
    (tree,) = step.trees
    before = ours.logprobs(tree)
    for _ in range(5):
        ours.forward_backward(step)
        ours.optim_step()
    gain = (ours.logprobs(tree) - before) * tree.advantages
    assert float(gain.sum()) > 0.1


# --- teachers -----------------------------------------------------------------------------------


def test_a_teacher_counts_against_the_current_policy() -> None:
    """Packed: log p_T and coef. In force: A + coef (log p_T - log p_current), detached."""
    model = tiny_model().eval()
    group, credits = make_item(FLAT, model=model)  # old log-probabilities are not the current ones
    taught = [with_teacher(credit, coef=0.3, seed=it) for it, credit in enumerate(credits[:2])]
    decoder = tiny_decoder()
    trainer(decoder).forward_backward(pack([(group, [*taught, *credits[2:]])]))

    combined: list[SegmentCredit] = []
    for credit in taught:
        assert credit.teacher is not None
        ids = group.tree.path_ids(credit.segment)
        current = row_logprobs(model, ids)[5:].detach().numpy()
        signal = credit.teacher.logprobs - current
        combined.append(replace(credit, teacher=None, advantages=float_array(given(credit) + 0.3 * signal)))
    plain_loss(model, [(group, [*combined, *credits[2:]])]).backward()
    assert relative_difference(gradients(decoder.model), gradients(model)) < 1e-5


def test_a_pure_teacher_equal_to_the_policy_teaches_nothing() -> None:
    model = tiny_model().eval()
    group = sampled_by(model, make_group(FLAT), noise=0.0)
    credits: list[SegmentCredit] = []
    for credit in make_credits(group, holes=False):
        taught = with_teacher(credit, coef=1.0)
        logprobs = group.tree.segments[credit.segment].logprobs
        assert taught.teacher is not None
        assert logprobs is not None
        teacher = replace(taught.teacher, logprobs=logprobs)
        credits.append(replace(credit, advantages=None, teacher=teacher))
    decoder = tiny_decoder()
    trainer(decoder).forward_backward(pack([(group, credits)]))
    assert max(float(grad.abs().max()) for grad in gradients(decoder.model).values()) < 1e-5


# --- steps that cannot or must not train --------------------------------------------------------


def test_a_step_without_trained_tokens_has_zero_loss_and_moves_nothing() -> None:
    group = make_group(FLAT, invalid=range(4))
    ours = trainer(weight_decay=0.5)
    before = {name: tensor.clone() for name, tensor in ours.publish().items()}
    metrics = [ours.forward_backward(pack([(group, make_credits(group))])), ours.optim_step()]
    assert metric_values(metrics[0]) == {"loss": 0.0, "trained_tokens": 0.0}
    assert metrics[1] == {}
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.publish().items())


def poisoned(item: Item, value: float) -> PackedStep:
    group, credits = item
    bad = replace(credits[-1], advantages=float_array([value] * len(credits[-1].weights)))
    return pack([(group, [*credits[:-1], bad])], max_tokens=1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_any_weight_changes(value: float) -> None:
    item = make_item(FLAT, model=tiny_model().eval())
    decoder = tiny_decoder()
    ours = trainer(decoder)
    before = {name: tensor.clone() for name, tensor in ours.publish().items()}
    with pytest.raises(TrainingError, match=r"the loss of tree \d of 4 is .*; not finite: advantages; no"):
        ours.forward_backward(poisoned(item, value))
    assert gradients(decoder.model) == {}  # those of earlier trees too
    assert ours.optim_step() == {}
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.publish().items())


def test_constant_rewards_give_no_gradient() -> None:
    group = sampled_by(tiny_model().eval(), make_group(FLAT))
    credits = [
        replace(it, advantages=float_array([0.0] * len(it.weights)))
        for it in make_credits(group, holes=False)
    ]
    decoder = tiny_decoder()
    metrics = trainer(decoder).forward_backward(pack([(group, credits)]))
    assert number(metrics, "loss") == 0.0
    assert all(not bool(grad.any()) for grad in gradients(decoder.model).values())


# --- weights ------------------------------------------------------------------------------------


def tied_decoder(dtype: torch.dtype) -> Decoder:
    model = tiny_model("gemma").to(dtype)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    return Decoder(model, vocab_size=model.config.vocab_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_weights_are_the_trained_ones_and_a_tied_one_comes_once(dtype: torch.dtype) -> None:
    decoder = tied_decoder(dtype)
    ours = trainer(decoder, learning_rate=0.05)
    ours.forward_backward(step_of(FLAT))
    before = {name: tensor.clone() for name, tensor in ours.publish().items()}
    ours.optim_step()
    published = ours.publish()
    assert all(tensor.dtype == dtype for tensor in published.values())
    assert len({tensor.data_ptr() for tensor in published.values()}) == len(published)
    assert any("embed_tokens" in name for name in published)
    assert not any("lm_head" in name for name in published)
    assert all(not torch.equal(before[name], tensor) for name, tensor in published.items())
    assert decoder.model.get_output_embeddings().weight is decoder.model.get_input_embeddings().weight
    fresh = tied_decoder(dtype)
    fresh.model.load_state_dict(published, strict=False)
    fresh.model.tie_weights()
    ids, positions = torch.arange(5), torch.arange(5)
    outputs = [it.logits(it.hidden(ids, positions, CausalLayout())) for it in (decoder, fresh)]
    assert torch.equal(outputs[0], outputs[1])


def test_bfloat16_gradients_are_near_those_of_float32() -> None:
    step = step_of(FORKED, TURNS)
    exact = tiny_decoder()
    trainer(exact).forward_backward(step)
    rounded = Decoder(tiny_model().to(torch.bfloat16), vocab_size=exact.vocab_size)
    ours = trainer(rounded)
    ours.forward_backward(step)
    assert all(grad.dtype == torch.float32 for grad in ours.gradients().values())
    assert relative_difference(ours.gradients(), gradients(exact.model)) < 0.2


def test_targets_end_with_the_token_that_ended_the_rollout() -> None:
    """The stop token is an action: left out, a policy forgets how to stop."""
    group = make_group(FLAT)
    (tree,) = pack([(group, make_credits(group, holes=False))]).trees
    ends = [int(segment.token_ids[-1]) for segment in group.tree.segments[1:]]
    assert listed(tree.targets[[4, 5, 17, 20]]) == ends
