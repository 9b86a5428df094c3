"""What a recipe says about teachers (on-policy distillation)."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

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


def _text(name: Any) -> Any:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{name!r} is no name of a teacher; write it as text, a number in quotes")
    return name


TeacherName: TypeAlias = Annotated[Name, BeforeValidator(_text)]


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
    source: Literal["feedback", "sibling", "branch"] = "feedback"
    """feedback: the verifier's record. sibling: the first other rollout of the group that earned its reward;
    where there is none, nothing is said. branch: what rollout.branching.rule told the policy of a root,
    record and reflection, in the same pass; of forks, and where the rule set it aside, nothing is said."""
    feedback_characters: PositiveInt = 2000
    """Feedback beyond is cut off."""


class StartTeacher(TeacherBase):
    """The policy as the run began. With an adapter the model's own weights are shared, and only the adapter's
    are kept twice; without one, all are."""

    kind: Literal["start"]


class EmaTeacher(TeacherBase):
    """A moving average of the policy, step by step: average = decay * average + (1 - decay) * weights, in
    float32. With an adapter it is the adapter's weights that are averaged."""

    kind: Literal["ema"]
    decay: Annotated[float, Number] = 0.99
    """For each step; 0.99 looks back over about 100 of them."""

    @field_validator("decay")
    @classmethod
    def _moves(cls, decay: float) -> float:
        if decay == 1:
            raise ValueError("decay = 1 never moves; kind = start is the policy as the run began")
        if not 0 < decay < 1:
            raise ValueError(f"decay = {decay:g} is no average; take a number between 0 and 1, such as 0.99")
        return decay


class MixtureTeacher(TeacherBase):
    """Several teachers of this recipe as one; where one of them has no word on a rollout, it has none."""

    kind: Literal["mixture"]
    of: Annotated[dict[Name, PositiveFloat], Field(min_length=2)]
    """Weights by name of a teacher; they sum to 1."""
    mean: Literal["geometric", "arithmetic"]
    """Of their probabilities, which are different targets. arithmetic: what one of them finds likely is
    likely. geometric: what one of them finds unlikely is unlikely; not normalised, which changes no gradient
    at discount 0."""


TeacherConfig: TypeAlias = Annotated[
    Annotated[ModelTeacher, Tag("model")]
    | Annotated[RunTeacher, Tag("run")]
    | Annotated[HindsightTeacher, Tag("hindsight")]
    | Annotated[StartTeacher, Tag("start")]
    | Annotated[EmaTeacher, Tag("ema")]
    | Annotated[MixtureTeacher, Tag("mixture")]
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

    teachers: Annotated[dict[TeacherName, TeacherConfig], Field(min_length=1)]
    """By name."""
    key: Name | None = None
    """The column that names a problem's teacher, with dots for what is inside of one (entry.num_terms);
    null: there is one for all, parts of a mixture not counted."""
    coef: Annotated[PositiveFloat, Field(le=1e6)] = 1.0
    """Advantage for each nat."""
    task: bool = True
    """Whether the task's own advantages count, too; false: the teacher alone decides."""
    loss: DistillLossConfig = SampledLoss()
    """What is made of the teacher's law."""
    resident: Literal["all", "one"] = "all"
    """Which other models are in memory. one: each is read from its files in every step when its turn to speak
    comes, and let go of afterwards."""

    @property
    def needs_verdicts(self) -> bool:
        """Whether a teacher is told how a rollout turned out."""
        return any(teacher.kind == "hindsight" for teacher in self.teachers.values())

    @property
    def parts(self) -> Set[str]:
        """Teachers that mixtures are made of."""
        mixtures = [it for it in self.teachers.values() if isinstance(it, MixtureTeacher)]
        return {name for mixture in mixtures for name in mixture.of}

    @property
    def chosen(self) -> tuple[str, ...]:
        """Teachers that a problem can have; one for all without a key."""
        if self.key is None:
            return tuple(name for name in self.teachers if name not in self.parts)
        shared = tuple(name for name, teacher in self.teachers.items() if teacher.share is not None)
        return shared or tuple(self.teachers)
