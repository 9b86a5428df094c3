"""From credited groups to new weights: packing, one step, its optimiser, checkpoints."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.training.checkpoint import Checkpoint as Checkpoint
    from turnpoint.training.checkpoint import latest_checkpoint as latest_checkpoint
    from turnpoint.training.checkpoint import load_checkpoint as load_checkpoint
    from turnpoint.training.checkpoint import load_latest as load_latest
    from turnpoint.training.checkpoint import save_checkpoint as save_checkpoint
    from turnpoint.training.packing import PackedStep as PackedStep
    from turnpoint.training.packing import pack_step as pack_step
    from turnpoint.training.row import PackedTree as PackedTree
    from turnpoint.training.step import Trainer as Trainer

__all__ = [
    "Checkpoint",
    "PackedStep",
    "PackedTree",
    "Trainer",
    "latest_checkpoint",
    "load_checkpoint",
    "load_latest",
    "pack_step",
    "save_checkpoint",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Checkpoint": "checkpoint",
        "PackedStep": "packing",
        "PackedTree": "row",
        "Trainer": "step",
        "latest_checkpoint": "checkpoint",
        "load_checkpoint": "checkpoint",
        "load_latest": "checkpoint",
        "pack_step": "packing",
        "save_checkpoint": "checkpoint",
    },
)
