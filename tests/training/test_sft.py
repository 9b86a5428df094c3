"""Fine-tuning through packed trees is plain cross-entropy over padded rows, whatever the packing."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.tiny import tiny_decoder, tiny_model
from tests.training.groups import gradients, listed, relative_difference
from turnpoint.losses import cross_entropy_loss
from turnpoint.metrics import metric_values
from turnpoint.models.demonstration import Demonstration
from turnpoint.tasks import BatchOrder
from turnpoint.tasks.solutions import SolvedTask
from turnpoint.training.sft import Example, Schedule, example_group, learn, measure, pack_examples
from turnpoint.training.step import Trainer
from turnpoint.types import Message, Task, token_array

IGNORED = -100  # transformers' label for what does not train
SIZES = ((4, 9), (7, 2), (1, 12), (5, 5), (4, 1))  # tokens of prompt and solution


def example(prompt: int, solution: int, *, seed: int = 0) -> Example:
    rng = np.random.default_rng([seed, prompt, solution])
    task = Task(id=f"{prompt}/{solution}", messages=(Message(role="user", content=""),), answer="")
    return Example(
        solved=SolvedTask(task=task, text=""),
        demonstration=Demonstration(
            prompt_ids=token_array(rng.integers(1, 60, prompt)),
            token_ids=token_array(rng.integers(1, 60, solution)),
            in_context=True,
        ),
    )


EXAMPLES = [example(*size) for size in SIZES]


def trainer(architecture: str = "llama") -> Trainer:
    return Trainer(
        tiny_decoder(architecture), loss=cross_entropy_loss, learning_rate=1e-2, head_chunk_tokens=7
    )


def ignore(*_: object) -> None:
    """Nobody asked."""


def padded(examples: list[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ids, attention mask and labels as a plain loop would make them."""
    rows = [[*it.demonstration.prompt_ids, *it.demonstration.token_ids] for it in examples]
    width = max(map(len, rows))
    ids, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), IGNORED)
    mask = torch.zeros_like(ids)
    for index, (row, it) in enumerate(zip(rows, examples, strict=True)):
        ids[index, : len(row)] = torch.tensor(np.array(row))
        mask[index, : len(row)] = 1
        prompt = len(it.demonstration.prompt_ids)
        labels[index, prompt : len(row)] = ids[index, prompt : len(row)]
    return ids, mask, labels


def plain_loss(model: Any, examples: list[Example]) -> Tensor:
    """Returns transformers' own loss on labels: the mean over all tokens that are no prompt or padding."""
    ids, mask, labels = padded(examples)
    return model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss


@pytest.mark.parametrize("architecture", ["llama", "gemma", "gpt2"])
@pytest.mark.parametrize("max_tokens", [8, 30, 1000])
def test_loss_and_gradient_are_those_of_transformers(architecture: str, max_tokens: int) -> None:
    model = tiny_model(architecture).eval()
    expected = plain_loss(model, EXAMPLES)
    expected.backward()
    decoder = tiny_decoder(architecture)
    ours = Trainer(decoder, loss=cross_entropy_loss, learning_rate=1e-2, head_chunk_tokens=7)
    metrics = metric_values(ours.forward_backward(pack_examples(EXAMPLES, max_tokens=max_tokens)))
    assert metrics["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert metrics["cross_entropy"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert relative_difference(gradients(decoder.model), gradients(model)) < 1e-5


def test_equal_prompts_are_examples_of_their_own() -> None:
    first = example(4, 6)
    second = Example(
        solved=first.solved,
        demonstration=Demonstration(
            prompt_ids=first.demonstration.prompt_ids, token_ids=token_array([9, 8, 7]), in_context=True
        ),
    )
    loss = metric_values(trainer().forward_backward(pack_examples([first, second], max_tokens=100)))["loss"]
    expected = plain_loss(tiny_model().eval(), [first, second])
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


def test_an_example_trains_its_solution_once_and_its_prompt_never() -> None:
    step = pack_examples(EXAMPLES, max_tokens=1000)
    assert step.trained_tokens == step.denominator == sum(solution for _, solution in SIZES)
    (tree,) = step.trees
    assert Counter(listed(tree.targets)) == Counter(
        int(token) for it in EXAMPLES for token in it.demonstration.token_ids
    )


def test_a_given_text_is_a_point_mass() -> None:
    group, (credit,) = example_group(EXAMPLES[0])
    (segment,) = group.generated(0)
    assert segment.logprobs is not None
    assert credit.advantages is not None
    assert set(segment.logprobs.tolist()) == {0.0}
    assert set(credit.weights.tolist()) == set(credit.advantages.tolist()) == {1.0}


def test_learning_lowers_what_is_measured_and_compares_with_no_engine() -> None:
    ours, step = trainer(), pack_examples(EXAMPLES, max_tokens=30)
    before = measure(ours, step, progress=ignore)
    reported = [learn(ours, step, progress=ignore) for _ in range(5)]
    after = measure(ours, step, progress=ignore)
    assert before.cross_entropy == pytest.approx(metric_values(reported[0])["cross_entropy"], rel=1e-5)
    assert (before.tokens, before.examples) == (sum(solution for _, solution in SIZES), len(SIZES))
    assert after.cross_entropy < before.cross_entropy - 0.5
    assert "mismatch" not in reported[0]
    assert {"cross_entropy", "entropy", "grad_norm", "learning_rate", "trained_tokens"} <= reported[0].keys()


@given(num=st.integers(1, 30), size=st.integers(1, 30), epochs=st.floats(0.05, 4), seed=st.integers(0, 3))
def test_passes_end_exactly(num: int, size: int, epochs: float, seed: int) -> None:
    size = min(num, size)
    schedule = Schedule(order=BatchOrder(num_tasks=num, batch_size=size, seed=seed), epochs=epochs)
    batches = [schedule.batch(step) for step in range(schedule.steps)]
    counts = Counter(index for batch in batches for index in batch)
    assert sum(counts.values()) == schedule.examples
    assert schedule.examples == math.ceil(round(epochs * num, 6))
    assert schedule.steps == math.ceil(schedule.examples / size)
    assert all(batch for batch in batches)
    if schedule.examples % num == 0:
        assert set(counts.values()) == {schedule.examples // num}
        assert len(counts) == num


def test_a_tenth_of_thirty_is_three() -> None:
    order = BatchOrder(num_tasks=30, batch_size=2, seed=0)
    assert Schedule(order=order, epochs=0.1).examples == 3  # 0.1 * 30 is a little more in floats
