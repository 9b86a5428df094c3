"""The algorithms that the grid compares, as their papers have them, on one schedule.

Every step takes four updates of a quarter of its prompts each: with a single one all ratios are 1, and
clipping, where the algorithms differ, has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnpoint import RunConfig, TrainResult, parse_recipe, train
from turnpoint.config.learning import (
    AdvantageConfig,
    CispoLoss,
    GroupAdvantageConfig,
    GspoLoss,
    LossConfig,
    OverlongPenalty,
    PpoClipLoss,
    RefillConfig,
)

MINI_BATCHES = 4
_BUFFER = 5  # tokens: what the recipe's limit adds to the longest solution
_STD = GroupAdvantageConfig(scale="std")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One algorithm."""

    loss: LossConfig
    advantage: AdvantageConfig = _STD
    refill: RefillConfig | None = None
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Keys of other sections, for example {"optimizer": {"learning_rate": 3e-4}}."""
    train: Callable[[RunConfig], TrainResult] = train
    """What trains it; another than turnpoint's own for what turnpoint refuses."""


ARMS: Mapping[str, Arm] = {
    "grpo": Arm(loss=PpoClipLoss(clip_low=0.2, clip_high=0.2, aggregation="sequence")),
    "dr_grpo": Arm(
        loss=PpoClipLoss(clip_low=0.2, clip_high=0.2, aggregation="constant"),
        advantage=GroupAdvantageConfig(),
    ),
    "dapo": Arm(
        loss=PpoClipLoss(clip_low=0.2, clip_high=0.28, aggregation="token"),
        advantage=GroupAdvantageConfig(scale="std", overlong=OverlongPenalty(buffer_tokens=_BUFFER)),
        refill=RefillConfig(),
    ),
    "gspo": Arm(loss=GspoLoss(kind="gspo")),
    "cispo": Arm(loss=CispoLoss(kind="cispo")),
}


def arm_recipe(base: RunConfig, arm: Arm, *, seed: int, steps: int, every: int) -> RunConfig:
    """Returns `base` with the algorithm, a seed, and an evaluation after every `every` of its `steps`.

    Raises RecipeError for keys that no recipe has.
    """
    tree: dict[str, Any] = base.model_dump(mode="json")
    tree["seed"] = seed
    tree["loss"] = arm.loss.model_dump(mode="json")
    tree["advantage"] = arm.advantage.model_dump(mode="json")
    tree["rollout"]["refill"] = None if arm.refill is None else arm.refill.model_dump(mode="json")
    tree["training"] |= {"steps": steps, "mini_batches": MINI_BATCHES}
    tree["evaluation"]["every"] = every
    for section, keys in arm.others.items():
        tree[section] = {**(tree[section] or {}), **keys}
    return parse_recipe(tree)
