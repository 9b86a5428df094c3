"""Which tasks each step takes: endless, shuffled, and a function of the step alone.

Epochs are permutations laid end to end and cut into batches, so a batch may begin in one epoch and end in
the next. Where it does, the first tasks of the next epoch are those that the batch does not hold yet: no
batch holds a task twice, and every epoch still holds every task once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnpoint.errors import DataError
from turnpoint.types import Task

_PURPOSE = 0x7461736B73  # keeps this stream apart from others with the same seed
_Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """The order of `num_tasks` tasks in batches of `batch_size`; resuming needs only the step.

    Raises DataError when a batch is larger than the dataset.

    >>> order = BatchOrder(num_tasks=4, batch_size=2, seed=0)
    >>> sorted(order.batch(0) + order.batch(1))
    [0, 1, 2, 3]
    """

    num_tasks: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.num_tasks:
            raise DataError(
                f"rollout.prompts_per_step = {self.batch_size} but there are {self.num_tasks} tasks to train "
                f"on; lower it or bring more tasks"
            )

    def batch(self, step: int) -> list[int]:
        """Returns the [batch_size] task indices of `step`, counted from 0; all differ."""
        epoch, start = divmod(step * self.batch_size, self.num_tasks)
        batch = self._epoch(epoch)[start : start + self.batch_size]
        missing = self.batch_size - len(batch)
        if missing:
            batch = np.concatenate([batch, self._epoch(epoch + 1)[:missing]])
        return batch.tolist()

    def take(self, position: int, count: int) -> list[int]:
        """Returns `count` task indices from the `position`-th on, batches laid end to end."""
        first, skip = divmod(position, self.batch_size)
        batches = range(first, first + -(-(skip + count) // self.batch_size))
        return [task for batch in batches for task in self.batch(batch)][skip : skip + count]

    def _epoch(self, epoch: int) -> _Order:
        """The order of one epoch, its head fitted to the batch that began in the epoch before."""
        # An epoch depends on the one before only through that batch: not at all where epochs and batches
        # end together, and not further back than one where head and tail of an epoch do not overlap.
        aligned = epoch - epoch % (self.batch_size // math.gcd(self.num_tasks, self.batch_size))
        first = aligned if self.num_tasks < 2 * self.batch_size else max(aligned, epoch - 1)
        order = self._permutation(first)
        for current in range(first + 1, epoch + 1):
            begun = current * self.num_tasks % self.batch_size
            order = self._fitted(self._permutation(current), order[self.num_tasks - begun :])
        return order

    def _fitted(self, order: _Order, begun: _Order) -> _Order:
        """Moves the tasks of `begun` behind those that complete its batch; otherwise keeps the order."""
        head = self.batch_size if len(begun) else 0
        repeated = np.isin(order[:head], begun)
        return np.concatenate([order[:head][~repeated], order[:head][repeated], order[head:]])

    def _permutation(self, epoch: int) -> _Order:
        # Sorting raw draws: numpy promises the bits of Philox for all versions, not its permutations.
        key = np.array([self.seed % 2**64, _PURPOSE], dtype=np.uint64)
        draws = np.random.Philox(key=key, counter=[0, 0, 0, epoch]).random_raw(self.num_tasks)
        return np.argsort(draws, kind="stable")


class TaskStream:
    """The tasks of a run one after the other; `position` counts those drawn, and is all a resume needs.

    A step that always takes whole batches gets exactly `BatchOrder.batch`; one that takes more may meet,
    where epochs join, a task that it holds already.
    """

    def __init__(self, tasks: Sequence[Task], order: BatchOrder, *, position: int = 0) -> None:
        self._tasks = tasks
        self._order = order
        self.position = position

    @property
    def batch_size(self) -> int:
        """Tasks that a step starts with."""
        return self._order.batch_size

    def take(self, count: int) -> list[Task]:
        """Returns the next `count` tasks."""
        taken = self._order.take(self.position, count)
        self.position += count
        return [self._tasks[index] for index in taken]
