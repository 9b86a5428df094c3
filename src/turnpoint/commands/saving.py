"""What was learnt is saved when a run ends, however it ends."""

from __future__ import annotations

from turnpoint.reports.run_log import RunFolder
from turnpoint.reports.terminal import Terminal
from turnpoint.training.checkpoint import Checkpoint, save_checkpoint
from turnpoint.training.step import Trainer


class Saving:
    """Saves what was learnt when the block ends, however it ends; `done` counts completed steps."""

    def __init__(self, trainer: Trainer, folder: RunFolder, terminal: Terminal) -> None:
        self._trainer = trainer
        self._folder = folder
        self._terminal = terminal
        self._saved = 0
        self.done = 0

    def save(self) -> None:
        """Writes a checkpoint of the completed steps, once."""
        if self.done > self._saved:
            state = self._trainer.state_dict()
            checkpoint = Checkpoint(step=self.done, state=state, metadata={})
            path = save_checkpoint(self._folder.checkpoints, checkpoint)
            self._terminal.line(f"checkpoint of step {self.done} saved: {path}")
            self._saved = self.done

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.save()  # before anything is written to a terminal that may be gone
        if kind is not None:
            self._terminal.line(f"stopped after {self.done} completed steps")
