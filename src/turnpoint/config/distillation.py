"""What a recipe says about teachers (on-policy distillation)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from turnpoint.config.base import (
    FilePath,
    Name,
    Number,
    PositiveFloat,
    PositiveInt,
    Recipe,
    kind_or,
)
from turnpoint.config.servers import ServerTeacher, TeacherBase


class ModelTeacher(TeacherBase):
    """Another model, whose ids mean the same: a larger one, an expert, or the policy as the run began."""

    kind: Literal["model"] = "model"
    path: Name
    """A folder, a hub name or the embedded model."""
    template: Literal["same", "any"] = "same"
    """same: refused unless its chat template renders a problem of the run as the policy's does; any: it is
    shown what the policy is shown, whatever it was trained on."""


class RunTeacher(TeacherBase):
    """The latest checkpoint of another run: what an earlier stage learnt."""

    kind: Literal["run"]
    path: FilePath
    """Its folder."""
    template: Literal["same", "any"] = "same"
    """As for a model."""


class HindsightTeacher(TeacherBase):
    """The policy itself, told how the rollout turned out, or a rollout that earned its reward."""

    kind: Literal["hindsight"]
    source: Literal["feedback", "sibling"] = "feedback"
    """feedback: the verifier's record. sibling: the first other rollout of the group that earned its reward;
    where there is none, nothing is said."""
    feedback_characters: PositiveInt = 2000
    """Feedback beyond is cut off."""


TeacherConfig: TypeAlias = Annotated[
    Annotated[ModelTeacher, Tag("model")]
    | Annotated[RunTeacher, Tag("run")]
    | Annotated[HindsightTeacher, Tag("hindsight")]
    | Annotated[ServerTeacher, Tag("server")],
    Discriminator(kind_or("model")),
]


class SampledLoss(Recipe):
    """The teacher's probability of every sampled token, as an advantage: A = A_task + coef * d,
    d = log p_teacher - log p_policy, with the policy as it is while it learns."""

    kind: Literal["sampled"] = "sampled"
    clip: PositiveFloat | None = None
    """Bounds |d|, nats; what it cuts is counted."""
    discount: Annotated[float, Number, Field(ge=0, le=1)] = 0.0
    """0: a token answers for its own d, which follows the gradient of the divergence at each visited prefix.
    1: for all d that follow it in the rollout, too, which is the gradient of the divergence of whole
    rollouts, with more noise. Between: later ones count less."""


class ReverseKlLoss(Recipe):
    """KL(policy || teacher) at each visited prefix, over all tokens: what `sampled` estimates."""

    kind: Literal["reverse_kl"]


class ForwardKlLoss(Recipe):
    """KL(teacher || policy) at each visited prefix, over all tokens."""

    kind: Literal["forward_kl"]


class JensenShannonLoss(Recipe):
    """The Jensen-Shannon divergence at each visited prefix; beta 0 is forward, 1 reverse KL (as in TRL)."""

    kind: Literal["jensen_shannon"]
    beta: Annotated[float, Number, Field(ge=0, le=1)] = 0.5


class HybridLoss(Recipe):
    """KL(policy || teacher), exact on the policy's k likeliest tokens and sampled outside: unbiased for every
    k."""

    kind: Literal["reverse_kl_topk_hybrid"]
    k: PositiveInt = 16


DistillLossConfig: TypeAlias = Annotated[
    Annotated[SampledLoss, Tag("sampled")]
    | Annotated[ReverseKlLoss, Tag("reverse_kl")]
    | Annotated[ForwardKlLoss, Tag("forward_kl")]
    | Annotated[JensenShannonLoss, Tag("jensen_shannon")]
    | Annotated[HybridLoss, Tag("reverse_kl_topk_hybrid")],
    Discriminator(kind_or("sampled")),
]


class DistillConfig(Recipe):
    """On-policy distillation: what a teacher would have said at every token that the policy sampled."""

    teachers: Annotated[dict[Name, TeacherConfig], Field(min_length=1)]
    """By name."""
    key: Name | None = None
    """The column that names a problem's teacher; null: there is one for all."""
    coef: Annotated[PositiveFloat, Field(le=1e6)] = 1.0
    """Advantage for each nat."""
    task: bool = True
    """Whether the task's own advantages count, too; false: the teacher alone decides."""
    loss: DistillLossConfig = SampledLoss()
    """What is made of the teacher's law."""
