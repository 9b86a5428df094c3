"""Checkpoints of a run while it works, and one of what was learnt whatever ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from turnpoint.drafting.online import OnlineHeads
from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.terminal import Terminal
from turnpoint.training.checkpoint import Checkpoint, prune_checkpoints, save_checkpoint
from turnpoint.training.step import Trainer
from turnpoint.types import Json

_MOST = 2**53  # beyond that nobody has counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run stands between two steps, beside its weights."""

    step: int = 0  # completed
    tasks: int = 0  # drawn
    updates: int = 0  # of the optimiser; a state with more was saved within a step

    @staticmethod
    def of(checkpoint: Checkpoint) -> Position:
        """Returns where the run stood that saved `checkpoint`.

        Raises KeyError when it does not say so, and ValueError when it says something impossible.
        """
        known: Any = checkpoint.metadata
        counts = {"step": checkpoint.step, "tasks": known["tasks"], "updates": known["updates"]}
        for name, value in counts.items():
            if type(value) is not int or not 0 <= value < _MOST:
                raise ValueError(f"{name} = {value!r} is no count")
        return Position(**counts)

    def to_json(self) -> dict[str, Json]:
        """Returns what a checkpoint tells beside its step."""
        return {"tasks": self.tasks, "updates": self.updates}


class Saving:
    """Saves what was learnt when the block ends, however it ends.

    `drawn` gives the tasks that so many steps drew; `keep` checkpoints stay, or all; `teachers` gives what
    changes with the policy beside it; `heads` are draft heads that learn too; `way_on` is said when the
    block does not end by itself.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        terminal: Terminal,
        *,
        drawn: Callable[[int], int],
        begun: Position,
        keep: int | None,
        teachers: Callable[[], Mapping[str, Tensor]] = dict[str, Tensor],
        heads: OnlineHeads | None = None,
        way_on: str = "",
    ) -> None:
        self._keep = keep
        self._teachers = teachers
        self._heads = heads
        self._trainer = trainer
        self._drawn = drawn
        self._way_on = way_on
        self._folder = folder
        self._terminal = terminal
        self._position = begun
        self._saved = begun.step

    @property
    def done(self) -> int:
        """Completed steps."""
        return self._position.step

    def count(self, done: int) -> None:
        """Takes note of where the run stands after `done` steps, before the next one draws tasks."""
        updates = int(self._trainer.state_dict()["steps"])
        self._position = Position(step=done, tasks=self._drawn(done), updates=updates)

    def save(self) -> None:
        """Writes a checkpoint of the completed steps, once, after all that was logged until now."""
        if self.done > self._saved:
            checkpoint = Checkpoint(
                step=self.done,
                state=self._trainer.state_dict(),
                metadata=self._position.to_json(),
                teachers=self._teachers(),
                heads=self._heads.state_dict() if self._heads else {},
            )
            try:
                self._folder.flush()
            finally:
                path = save_checkpoint(self._folder.checkpoints, checkpoint)
            if self._heads:
                self._heads.save(self._folder.path / "heads")
            self._saved = self.done
            if self._keep is not None:
                prune_checkpoints(self._folder.checkpoints, keep=self._keep)
            self._terminal.line(f"checkpoint of step {self.done} saved: {path}")  # it may be gone

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.save()  # before anything is written to a terminal that may be gone
        if kind is not None:
            self._terminal.line(f"stopped after {self.done} completed steps{self._way_on}")
