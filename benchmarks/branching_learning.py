"""Whether groups that fork learn more per token, update or second, and which part of that is hindsight.

    python -m benchmarks.branching_learning runs/branching.jsonl [--arms ...] [--seeds 0 1 2 3 4] [--steps 40]
    python -m benchmarks.organism.summary runs/branching.jsonl --by tokens --against flat  # or step, seconds

Runs a grid (benchmarks/organism/grid.py) on the organism that can reflect. All arms have groups of 16 on 16
problems a step, HDL's objective (mean of the group, no scaling; clip 0.2 and 0.28) and four updates a step:

    flat, dapo        no forks; DAPO with dynamic sampling and its penalty of overlong completions
    random, entropy,  2 x (1 + 4 + 3), forked by rules that know no outcome: what branching alone gives
    surprisal
    reflection        by the policy's own word on its lines; a solution here is one: all begin at the prompt
    hindsight         by the record and the policy's own reflection (arXiv 2609.36864)
    oracle            by the record and a right reflection that costs nothing: what hindsight could give
    hindsight_*       the same forks as hindsight with another credit
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.organism import verify
from benchmarks.organism.arms import ARMS as OBJECTIVES
from benchmarks.organism.arms import Arm
from benchmarks.organism.bed import REFLECTIVE
from benchmarks.organism.grid import run_grid
from turnpoint.config.learning import (
    AdvantageConfig,
    GroupAdvantageConfig,
    PpoClipLoss,
    SiblingAdvantageConfig,
    SubtreeAdvantageConfig,
)

_GAP = 4  # tokens, about a step of a solution
_OWN: Mapping[str, Any] = {"kind": "hindsight", "base": "decode", "source": {"max_tokens": 48}}
_TOLD: Mapping[str, Any] = {"kind": "hindsight", "base": "decode", "source": {"kind": "feedback"}}
_ORACLE = {"verifier": {"path": f"{verify.__file__}:reward_told"}}
_MEAN = GroupAdvantageConfig()


def _forked(
    rule: Mapping[str, Any], advantage: AdvantageConfig = _MEAN, others: Mapping[str, Any] | None = None
) -> Arm:
    shape = {"roots": 2, "continuations": [4, 3], "min_gap": _GAP, "rule": rule}
    return Arm(
        loss=PpoClipLoss(),
        advantage=advantage,
        others={"rollout": {"branching": shape}, **(others or {})},
    )


ARMS: Mapping[str, Arm] = {
    "flat": Arm(loss=PpoClipLoss(), advantage=_MEAN),
    "dapo": OBJECTIVES["dapo"],
    "random": _forked({"kind": "random"}),
    "entropy": _forked({"kind": "entropy"}),
    "surprisal": _forked({"kind": "surprisal"}),
    "reflection": _forked({"kind": "reflection", "max_tokens": 16}),
    "hindsight": _forked(_OWN),
    "oracle": _forked(_TOLD, others=_ORACLE),
    "hindsight_leave_one_out": _forked(_OWN, GroupAdvantageConfig(baseline="leave_one_out")),
    "hindsight_sibling": _forked(_OWN, SiblingAdvantageConfig(kind="sibling_leave_one_out", decay=0)),
    "hindsight_subtree": _forked(_OWN, SubtreeAdvantageConfig(kind="subtree_value")),
}


def main() -> None:
    """Runs what is missing."""
    run_grid(ARMS, REFLECTIVE, description=f"See the head of {Path(__file__).name}.")


if __name__ == "__main__":
    main()
