"""Where a finished rollout should fork: scores per token, selection of points, rules behind one seam."""

from typing import TYPE_CHECKING

from turnpoint._lazy import lazy

if TYPE_CHECKING:
    from turnpoint.branching.allocation import allocate_continuations as allocate_continuations
    from turnpoint.branching.scores import hindsight_scores as hindsight_scores
    from turnpoint.branching.selection import select_branch_points as select_branch_points

__all__ = ["allocate_continuations", "hindsight_scores", "select_branch_points"]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "allocate_continuations": "allocation",
        "hindsight_scores": "scores",
        "select_branch_points": "selection",
    },
)
