"""What a step's rollouts say of drafts, from the counters of the engine: ratios of sums over all rounds.

draft/accept_length     (accepted + rounds) / rounds        tokens of a round, the policy's own included
draft/acceptance        accepted / drafted
draft/drafted           tokens that were drafted
"""

from __future__ import annotations

from turnpoint.engine.stats import EngineStats
from turnpoint.metrics import Mean, Metrics, Sum

ACCEPT_LENGTH = "draft/accept_length"
ACCEPTANCE = "draft/acceptance"
DRAFTED = "draft/drafted"


def draft_metrics(stats: EngineStats) -> Metrics:
    """Returns them; a round is one row's in one pass with drafts, plain passes do not count.

    Accepted is what a rollout gained: drafts behind its end are drafted, and not accepted.
    """
    return {
        ACCEPT_LENGTH: Mean(stats.accepted + stats.rounds, stats.rounds),
        ACCEPTANCE: Mean(stats.accepted, stats.drafted),
        DRAFTED: Sum(stats.drafted),
    }
