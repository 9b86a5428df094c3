"""What drafts take in memory, beside the policy."""

from __future__ import annotations

from turnpoint.diagnosis.memory import DraftNeeds
from turnpoint.engine.mtp import MtpDrafter
from turnpoint.engine.parallel import ParallelDrafter
from turnpoint.engine.speculation import Speculation


def draft_needs(speculation: Speculation | None, *, workers: int) -> DraftNeeds:
    """Returns what drafts take beside heads that were loaded into this process: other workers have their own.

    Of a drafter that is not turnpoint's own, only what verification takes.
    """
    if speculation is None:
        return DraftNeeds()
    drafter, depth = speculation.drafter, speculation.depth.deepest
    if not isinstance(drafter, MtpDrafter | ParallelDrafter):
        return DraftNeeds(depth=depth)
    copies = workers if workers > 1 else 0
    return DraftNeeds(depth=depth, weights=copies * drafter.weight_bytes, token_state=drafter.token_bytes)
