"""From tasks to groups of judged rollouts, and groups on disk."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.rollout.evaluate import Evaluation as Evaluation
    from turnpoint.rollout.evaluate import evaluate as evaluate
    from turnpoint.rollout.recorder import RolloutWriter as RolloutWriter
    from turnpoint.rollout.recorder import read_groups as read_groups
    from turnpoint.rollout.rollouter import Rollouter as Rollouter

__all__ = ["Evaluation", "RolloutWriter", "Rollouter", "evaluate", "read_groups"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Evaluation": "evaluate",
        "evaluate": "evaluate",
        "RolloutWriter": "recorder",
        "Rollouter": "rollouter",
        "read_groups": "recorder",
    },
)
