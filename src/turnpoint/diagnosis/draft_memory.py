"""What drafts take in memory, beside the policy."""

from __future__ import annotations

from turnpoint.diagnosis.memory import DraftNeeds
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.parallel import ParallelDrafter
from turnpoint.engine.speculation import Speculation

_LEARNING_COPIES = 4  # float32 ones of heads that learn on: masters, gradients, two moments


def draft_needs(speculation: Speculation | None, *, workers: int) -> DraftNeeds:
    """Returns what drafts take beside heads that were loaded into this process.

    Several workers have heads of their own, but those that learn on, which they share. Of a drafter that is
    not turnpoint's own, only what verification takes is known.
    """
    if speculation is None:
        return DraftNeeds()
    drafter, depth = speculation.drafter, speculation.depth.deepest
    if not isinstance(drafter, MtpDrafter | ParallelDrafter):
        return DraftNeeds(depth=depth)
    if speculation.learning is not None:
        weights = _LEARNING_COPIES * sum(4 * it.numel() for it in speculation.learning.parameters())
    else:
        weights = workers * drafter.weight_bytes if workers > 1 else 0
    return DraftNeeds(depth=depth, weights=weights, token_state=drafter.token_bytes)
