"""Truncated importance weights: what they are, and that on-policy they are nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.tiny import tiny_decoder, tiny_model
from tests.training.groups import FLAT, FORKED, gradients, listed, make_item, pack, relative_difference
from turnpoint.training import Trainer
from turnpoint.training.prepare import Correction, Preparation


def test_without_correction_and_reference_nothing_is_asked() -> None:
    step = pack([make_item(FLAT, model=tiny_model())])

    def never(tree: object) -> torch.Tensor:
        raise AssertionError("asked")

    done, metrics = Preparation(logprobs=never)(step)
    assert done.trees == step.trees
    assert metrics == {}


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_weights_are_trainer_over_engine_cut_off(level: str) -> None:
    step = pack([make_item(FLAT, model=tiny_model()), make_item(FORKED, model=tiny_model(), seed=1)])
    trainer = Trainer(tiny_decoder(), learning_rate=1e-3)
    done, metrics = Preparation(logprobs=trainer.logprobs, correction=Correction(cap=1.1, level=level))(step)
    for before, after in zip(step.trees, done.trees, strict=True):
        current = trainer.logprobs(before)
        torch.testing.assert_close(after.old_logprobs, current)
        torch.testing.assert_close(after.sampled_logprobs, before.sampled_logprobs)
        gaps = listed(current - before.sampled_logprobs)
        ids = listed(before.sequence_ids)
        for index, number in enumerate(ids):
            members = [index] if level == "token" else [i for i, other in enumerate(ids) if other == number]
            ratio = torch.tensor(sum(gaps[i] for i in members)).exp()
            expected = before.weights[index] * ratio.clamp(max=1.1)
            assert float(after.weights[index]) == pytest.approx(float(expected), rel=1e-4)
    assert done.denominator == step.denominator
    assert 0 < (metrics["correction_truncated"].value or 0) < 1


def test_a_trainer_that_agrees_with_the_engine_is_not_corrected() -> None:
    """On-policy, weights are 1 and the gradient is that without a correction."""
    model = tiny_model().eval()
    plain, corrected = tiny_decoder(), tiny_decoder()
    step = pack([make_item(FLAT, model=model)])
    exact = Trainer(plain, learning_rate=1e-3)
    own, _ = Preparation(logprobs=exact.logprobs, correction=Correction(cap=9.0, level="token"))(step)
    trees = tuple(
        replace(tree, sampled_logprobs=other.old_logprobs, old_logprobs=other.old_logprobs)
        for tree, other in zip(step.trees, own.trees, strict=True)
    )
    agreeing = replace(step, trees=trees)
    exact.forward_backward(agreeing)
    trainer = Trainer(corrected, learning_rate=1e-3)
    again, _ = Preparation(logprobs=trainer.logprobs, correction=Correction(cap=9.0, level="token"))(agreeing)
    trainer.forward_backward(again)
    assert relative_difference(gradients(corrected.model), gradients(plain.model)) < 1e-5
