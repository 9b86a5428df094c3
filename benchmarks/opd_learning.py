"""Whether a weak student reaches its teacher by on-policy distillation, and for how many of its own tokens.

    python -m benchmarks.opd_learning runs/opd.jsonl [--arms ...] [--seeds 0 1 2 3 4] [--steps 60]
    python -m benchmarks.organism.summary runs/opd.jsonl --by tokens --against grpo

The teacher is the organism after 120 steps of GRPO, the student the organism before; all arms take four
updates a step. One JSON line is printed of the teacher, and per arm and seed one is appended to the file
(benchmarks/organism/grid.py).

    grpo       16 problems x 16 samples a step, rewards alone
    opd        16 x 4, the teacher alone: no reward teaches, no group is compared
    opd_clip   the same with |d| of at most 2 nats
    opd_full   the whole law of the teacher: KL(policy || teacher) at each prefix, over all tokens
    opd_topk   the same, exact on the policy's 4 likeliest tokens and sampled outside
    opd_later  the same as opd with each token answering for what follows it, too (discount 0.9)
    opd_value  the value of a top-k reverse KL as advantage, as Miles has it: does not distil
    task_opd   16 x 4, rewards and teacher
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.common import emit
from benchmarks.organism import topk_value
from benchmarks.organism.arms import ARMS as OBJECTIVES
from benchmarks.organism.arms import Arm
from benchmarks.organism.bed import DEFAULT
from benchmarks.organism.expert import expert_folder, make_expert
from benchmarks.organism.grid import run_grid
from turnpoint.config.learning import GroupAdvantageConfig, PpoClipLoss, ReinforceLoss


def arms() -> Mapping[str, Arm]:
    """Returns the arms; the teacher's folder need not be there yet."""
    teachers = {"expert": {"kind": "run", "path": str(expert_folder())}}
    few = {"samples_per_prompt": 4}

    def taught(**how: Any) -> Arm:
        others = {"distill": {"teachers": teachers, "task": False, **how}, "rollout": few}
        return Arm(loss=ReinforceLoss(kind="reinforce"), advantage=GroupAdvantageConfig(), others=others)

    opd = taught()
    both = {"distill": {"teachers": teachers, "coef": 0.2}, "rollout": few}
    return {
        "grpo": OBJECTIVES["grpo"],
        "opd": opd,
        "opd_clip": taught(loss={"clip": 2.0}),
        "opd_full": taught(loss={"kind": "reverse_kl"}),
        "opd_topk": taught(loss={"kind": "reverse_kl_topk_hybrid", "k": 4}),
        "opd_later": taught(loss={"discount": 0.9}),
        "opd_value": replace(opd, train=topk_value.train),
        "task_opd": Arm(loss=PpoClipLoss(), advantage=GroupAdvantageConfig(), others=both),
    }


def main() -> None:
    """Makes the teacher, then runs what is missing."""
    emit(benchmark="opd_learning", arm="teacher", **make_expert())
    run_grid(arms(), DEFAULT, description=__doc__.splitlines()[0] if __doc__ else "")


if __name__ == "__main__":
    main()
