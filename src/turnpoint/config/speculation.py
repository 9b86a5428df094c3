"""The section on speculative decoding in rollouts: whose drafts, how deep, how they are verified."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnpoint.config.base import FilePath, PositiveFloat, PositiveInt, Recipe

MOST_DEPTH = 16  # tokens of a draft; what the heads are made for


class HeadTrainingConfig(Recipe):
    """Heads that learn on from a step's own rollouts, after its update; they never train the policy."""

    every: PositiveInt = 1
    """Steps from one such training to the next; 1: after every step."""
    tokens: PositiveInt = 8192
    """Of one training, prompts included, in whole rollouts; at least one rollout is taken."""
    batch_tokens: PositiveInt = 2048
    """Tokens of one update, rollouts packed behind each other; a longer one is an update of its own."""
    learning_rate: PositiveFloat = 1e-4


class EngineDraftConfig(Recipe):
    """Draft heads at work; weights that a step publishes leave them as they are."""

    heads: FilePath
    """The folder of heads that `turnpoint draft` wrote."""
    depth: Annotated[PositiveInt, Field(le=MOST_DEPTH)] = 3
    """Tokens that are drafted in a round; with `adaptive` the most."""
    adaptive: bool = False
    """true: as deep as gives most tokens per second by what was measured, 0 included. The law is the same;
    tokens depend on how fast the machine is, so a run that stops and goes on is another one, bit by bit."""
    tempered: bool = False
    """true: drafts of each depth are drawn at the temperature at which they overlap most with the policy, by
    what earlier rounds showed; for heads that were trained at another one. The law is the same; tokens depend
    on those rounds, so a run that stops and goes on is another one, bit by bit."""
    mode: Literal["token", "block", "target_only"] = "token"
    """How drafts are verified, each exact. token: one by one. block: a chain as a whole, which accepts at
    least as many. target_only: the draft's likeliest tokens, for heads whose laws are worth little."""
    retrained: bool = False
    """true: heads of the same model with other weights are taken too; fewer drafts may be accepted."""
    training: HeadTrainingConfig | None = None
    """Of the heads in a run of `turnpoint train`, which keeps them in its folder, in `heads`; the folder
    `heads` above stays as it is. null: they are frozen."""

    @model_validator(mode="after")
    def _likeliest_has_no_temperature(self) -> EngineDraftConfig:
        if self.tempered and self.mode == "target_only":
            raise ValueError(
                "tempered = true with mode = target_only, which takes the draft's likeliest token at any "
                "temperature; take mode = token or block, or leave tempered out"
            )
        return self
