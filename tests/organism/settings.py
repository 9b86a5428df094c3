"""An organism that is built in seconds and knows little."""

from __future__ import annotations

from benchmarks.organism.settings import Lesson, Misconception, OrganismSettings

TINY = OrganismSettings(
    steps=(1, 3),
    misconceptions=(Misconception(operation="+8", shift=9, slip=0.95),),
    layers=2,
    width=32,
    heads=2,
    inner=64,
    lessons=(Lesson(solutions=1024, learning_rate=1e-2),),
    examples_per_step=16,
    warmup_steps=5,
    train_problems=32,
    held_out_problems=8,
)
