"""The order of tasks: every epoch whole, every batch without repetition, every step on its own."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpoint.errors import DataError
from turnpoint.tasks.order import BatchOrder, TaskStream
from turnpoint.types import Task


@st.composite
def orders(draw: st.DrawFn) -> BatchOrder:
    num_tasks = draw(st.integers(1, 40))
    batch_size = draw(st.integers(1, num_tasks))
    return BatchOrder(num_tasks=num_tasks, batch_size=batch_size, seed=draw(st.integers(0, 2**70)))


@given(orders())
def test_every_epoch_holds_every_task_once(order: BatchOrder) -> None:
    epochs = 7
    steps = -(-epochs * order.num_tasks // order.batch_size)
    stream = [task for step in range(steps) for task in order.batch(step)]
    for epoch in range(epochs):
        start = epoch * order.num_tasks
        assert sorted(stream[start : start + order.num_tasks]) == list(range(order.num_tasks))


@given(orders(), st.integers(0, 500))
def test_no_batch_repeats_a_task(order: BatchOrder, first: int) -> None:
    for step in range(first, first + 20):
        batch = order.batch(step)
        assert len(batch) == len(set(batch)) == order.batch_size


def test_epochs_and_seeds_differ() -> None:
    order = BatchOrder(num_tasks=20, batch_size=20, seed=3)
    shuffles = {tuple(order.batch(step)) for step in range(50)}
    shuffles |= {tuple(BatchOrder(num_tasks=20, batch_size=20, seed=seed).batch(0)) for seed in range(50)}
    assert len(shuffles) == 99  # seed 3, epoch 0 is in both


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
def test_every_place_sees_every_task_equally_often(batch_size: int) -> None:
    num_tasks, steps = 4, 4000
    order = BatchOrder(num_tasks=num_tasks, batch_size=batch_size, seed=0)
    batches = [order.batch(step) for step in range(steps)]
    for place in range(batch_size):
        counts = Counter(batch[place] for batch in batches)
        assert all(abs(counts[task] - 1000) < 140 for task in range(num_tasks))  # five deviations


def test_the_order_does_not_change_between_versions() -> None:
    # a resumed run relies on it: changing these values changes the data of every stored run
    order = BatchOrder(num_tasks=10, batch_size=4, seed=1)
    assert [order.batch(step) for step in (0, 2, 1000)] == [[4, 9, 2, 6], [8, 0, 1, 9], [7, 1, 9, 0]]


def test_a_late_step_of_a_large_dataset_is_found_directly() -> None:
    order = BatchOrder(num_tasks=100_000, batch_size=513, seed=0)
    assert len(set(order.batch(10**9))) == 513


@pytest.mark.parametrize("batch_size", [0, 4])
def test_a_batch_beyond_the_dataset_is_an_error_with_the_numbers(batch_size: int) -> None:
    with pytest.raises(DataError, match=f"prompts_per_step = {batch_size} but there are 3 tasks to train on"):
        BatchOrder(num_tasks=3, batch_size=batch_size, seed=0)


@given(orders(), st.integers(0, 60), st.lists(st.integers(0, 12), max_size=5))
def test_the_stream_is_the_batches_end_to_end(order: BatchOrder, position: int, counts: list[int]) -> None:
    tasks = [Task(id=str(index), messages=(), answer="") for index in range(order.num_tasks)]
    stream = TaskStream(tasks, order, position=position)
    taken = [int(task.id) for count in counts for task in stream.take(count)]
    last = (position + sum(counts)) // order.batch_size + 1
    whole = [task for batch in range(last) for task in order.batch(batch)]
    assert taken == whole[position : position + sum(counts)]
    assert stream.position == position + sum(counts)
