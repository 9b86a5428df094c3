"""Recipes of `turnpoint draft`: which heads learn from which texts, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from turnpoint.config.asking import ModelConfig
from turnpoint.config.base import (
    FilePath,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Recipe,
    kind_or,
)
from turnpoint.config.learning import OptimizerConfig
from turnpoint.config.speculation import MOST_DEPTH

DraftLoss: TypeAlias = Literal[
    "cross_entropy",
    "forward_kl",
    "reverse_kl",
    "tv",
    "end_to_end_tv",
    "pathwise_tv",
    "negative_log",
    "kl_tv_hybrid",
]


class RunTexts(Recipe):
    """The rollouts of a run of `turnpoint train`, from its rollouts.jsonl."""

    kind: Literal["run"]
    path: FilePath
    """The run folder."""
    limit: PositiveInt | None = None
    """At most so many rollouts, the latest."""


class JsonlTexts(Recipe):
    """Texts from a JSON-lines file: `text`, all of it taken as the policy's, or `messages` that end with its
    reply, rendered by its chat template."""

    kind: Literal["jsonl"]
    path: FilePath
    limit: PositiveInt | None = None
    """At most so many rows, from the front."""


TextsConfig: TypeAlias = Annotated[RunTexts | JsonlTexts, Field(discriminator="kind")]


class FreshHeads(Recipe):
    """New heads: copies of the model's last layer, fitted to the texts by least squares before they learn."""

    kind: Literal["fresh"] = "fresh"
    layers: Annotated[PositiveInt, Field(le=MOST_DEPTH)] = 1
    """Of their own; deeper drafts use them again."""


class FolderHeads(Recipe):
    """Heads of an earlier `turnpoint draft`, which learn on with a new optimiser."""

    kind: Literal["folder"]
    path: FilePath
    retrained: bool = False
    """true: also those made for the same model with other weights, such as before a run."""


class CheckpointHeads(Recipe):
    """Heads that came inside a model's checkpoint."""

    kind: Literal["checkpoint"]
    family: Literal["deepseek_v3", "glm4_moe", "qwen3_next", "mimo"]
    path: FilePath | None = None
    """A Hugging Face folder; null: that of the model."""


HeadsConfig: TypeAlias = Annotated[
    Annotated[FreshHeads, Tag("fresh")]
    | Annotated[FolderHeads, Tag("folder")]
    | Annotated[CheckpointHeads, Tag("checkpoint")],
    Discriminator(kind_or("fresh")),
]


class FirstLoss(Recipe):
    """A loss for the first steps: where draft and policy hardly overlap, total variation has no slope."""

    loss: DraftLoss = "forward_kl"
    share: Annotated[float, Number, Field(gt=0, lt=1)] = 0.7
    """Of all steps."""


class DraftTrainingConfig(Recipe):
    """How long, and how much goes through the network at once."""

    steps: PositiveInt = 300
    batch_tokens: PositiveInt = 2048
    """Tokens of one step, texts packed behind each other; a longer text is a step of its own."""


class DraftConfig(Recipe):
    """Training draft heads, the policy frozen."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "drafts"
    """Of the folder."""
    seed: NonNegativeInt = 0
    """Of the order of texts, and of which are held out."""
    output_dir: FilePath = Path("drafts")
    """Where folders go; the heads are in `heads` inside."""
    model: ModelConfig = ModelConfig()
    data: tuple[TextsConfig, ...]
    """Where texts come from; several are mixed."""
    temperature: Annotated[PositiveFloat, Field(ge=1e-6, le=1e6)] | None = None
    """Of the policy's law, which drafts should meet; null: that of the runs in `data`, 1 without."""
    heads: HeadsConfig = FreshHeads()
    depth: Annotated[PositiveInt, Field(le=MOST_DEPTH)] = 3
    """Tokens that a draft is trained for."""
    loss: DraftLoss = "end_to_end_tv"
    """What is lowered, see the guide. pathwise_tv is for texts that this very policy sampled."""
    first: FirstLoss | None = FirstLoss()
    """null: `loss` from the first step."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-3, warmup_steps=10)
    training: DraftTrainingConfig = DraftTrainingConfig()
    held_out: Annotated[float, Number, Field(ge=0, lt=1)] = 0.1
    """Share of the texts, groups whole, that are only measured, before and after."""

    @model_validator(mode="after")
    def _parts_fit(self) -> DraftConfig:
        if not self.data:
            raise ValueError("data = []: name texts, for example data=[{kind: run, path: runs/NAME}]")
        if self.optimizer.warmup_steps >= self.training.steps:
            raise ValueError(
                f"optimizer.warmup_steps = {self.optimizer.warmup_steps} leaves nothing of training.steps = "
                f"{self.training.steps}"
            )
        foreign = next((it for it in self.data if it.kind != "run"), None)
        pathwise = self.loss == "pathwise_tv" or (self.first is not None and self.first.loss == "pathwise_tv")
        if pathwise and foreign is not None:
            raise ValueError(
                f"loss = pathwise_tv estimates nothing on texts that the policy did not sample, such as "
                f"{foreign.path}; take data of kind run alone, or loss=end_to_end_tv"
            )
        return self
