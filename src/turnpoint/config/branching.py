"""Sections on groups that fork: their shape, and the rule that says where."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from turnpoint.config.base import NonNegativeInt, Number, PositiveInt, Recipe, kind_or


class GateConfig(Recipe):
    """When reflections are not believed: entropy then decides, and says so."""

    agreement: Annotated[float, Number, Field(ge=0, le=1)] = 0.95
    """Least share of recent roots whose OUTCOME is the verifier's. A root whose reflection contradicts the
    verifier is left to entropy in any case."""
    steps: PositiveInt = 4
    """How many steps are recent."""


class ReflectionSource(Recipe):
    """The verifier's record, and what the policy writes about its attempt (HDL, arXiv 2609.36864)."""

    kind: Literal["reflection"] = "reflection"
    max_tokens: PositiveInt = 192
    """Of a reflection."""
    gate: GateConfig | None = GateConfig()
    """null: a reflection is believed whatever it says."""


class FeedbackSource(Recipe):
    """The verifier's record alone; nothing is generated."""

    kind: Literal["feedback"]


class SiblingSource(Recipe):
    """Another root of the group that earned its reward, else the record; nothing is generated."""

    kind: Literal["sibling"]


SourceConfig: TypeAlias = Annotated[
    Annotated[ReflectionSource, Tag("reflection")]
    | Annotated[FeedbackSource, Tag("feedback")]
    | Annotated[SiblingSource, Tag("sibling")],
    Discriminator(kind_or("reflection")),
]


class HindsightRuleConfig(Recipe):
    """Where the policy, knowing the outcome, changes its mind: by the change of a token's log-probability."""

    kind: Literal["hindsight"] = "hindsight"
    source: SourceConfig = ReflectionSource()
    """What it is told."""
    direction: Literal["absolute", "signed", "decrease"] = "absolute"
    """absolute: the paper's. signed: what hindsight rejects most, first. decrease: nothing else."""
    weigh_alternatives: bool = False
    """Times the probability of all other tokens: a sure token is mostly drawn again by its fork."""
    base: Literal["prefill", "decode"] = "prefill"
    """Log-probabilities without hindsight: scored anew, or as they were sampled (at temperature 1 only)."""
    feedback_characters: PositiveInt = 2000
    """Feedback beyond them is cut off."""


class EntropyRuleConfig(Recipe):
    """Where the policy was least sure: the entropy of its next-token law."""

    kind: Literal["entropy"]


class SurprisalRuleConfig(Recipe):
    """Where the sampled token was least likely."""

    kind: Literal["surprisal"]


class StepsRuleConfig(Recipe):
    """Where the policy, asked outright, names steps of its attempt (the paper's Reflection baseline)."""

    kind: Literal["reflection"]
    max_tokens: PositiveInt = 64
    """Of its answer."""
    feedback_characters: PositiveInt = 2000
    """Feedback beyond them is cut off."""


class RandomRuleConfig(Recipe):
    """Anywhere: the control."""

    kind: Literal["random"]


RuleConfig: TypeAlias = Annotated[
    Annotated[HindsightRuleConfig, Tag("hindsight")]
    | Annotated[EntropyRuleConfig, Tag("entropy")]
    | Annotated[SurprisalRuleConfig, Tag("surprisal")]
    | Annotated[StepsRuleConfig, Tag("reflection")]
    | Annotated[RandomRuleConfig, Tag("random")],
    Discriminator(kind_or("hindsight")),
]


class BranchingConfig(Recipe):
    """A group of a few roots and continuations from points within them, compared with each other.

    A root without a point gives its continuations to rollouts from the prompt.
    """

    roots: PositiveInt = 2
    """Rollouts from the prompt."""
    continuations: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (4, 3)
    """Of each root, by branch point, the best first; roots x (1 + their sum) is samples_per_prompt."""
    rule: RuleConfig = HindsightRuleConfig()
    """Where a root forks."""
    min_gap: PositiveInt = 16
    """Tokens between two points of a root, at least."""
    skip_first: PositiveInt = 1
    """Tokens at the start of a root that are no points; a fork at the first would be another root."""
    skip_last: NonNegativeInt = 0
    """The same at its end."""
    blanks: bool = False
    """Whether tokens of blanks alone may be points."""
    punctuation: bool = True
    """Whether tokens without a letter or digit may be points."""
    deterministic: bool = False
    """Forks wait until all roots of the step are judged: slower. Without it the last bits of a run depend on
    how long verdicts take, and a resumed run is not bit for bit the one without interruption."""
