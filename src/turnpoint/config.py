"""A run as a typed, frozen recipe. Unknown keys are refused with the nearest name; every key is read.

A recipe is YAML, overridden by dotted `key=value`; the resolved form is saved in the run folder. Choices
with their own options are told apart by `kind`, so that an option of another choice cannot be written.
Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from turnpoint import _explain
from turnpoint.errors import RecipeError


def _no_yes_or_no(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{value} is YAML for yes or no; write a number")
    return value


def _can_name_a_file(value: Any) -> Any:
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"{value!r} holds a character that no file name can")
    return value


_Number = BeforeValidator(_no_yes_or_no)
_Place = BeforeValidator(_can_name_a_file)
_COUNTABLE = 2**63 - 1  # for the libraries below

PositiveInt: TypeAlias = Annotated[int, _Number, Field(gt=0, le=_COUNTABLE)]
NonNegativeInt: TypeAlias = Annotated[int, _Number, Field(ge=0)]
PositiveFloat: TypeAlias = Annotated[float, _Number, Field(gt=0)]
FilePath: TypeAlias = Annotated[Path, _Place]
Name: TypeAlias = Annotated[str, _Place]  # of a file or of something else


class Recipe(BaseModel):
    """Base of all sections: frozen, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# --- model and data -----------------------------------------------------------------------------


class ModelConfig(Recipe):
    """Which policy to train."""

    path: Name = "smollm2-135m-instruct"
    """A folder, a hub name, or the embedded default."""
    device: str = "auto"
    """auto: CUDA where there is one, else CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of sampling and of forward and backward; masters are float32. auto: bfloat16 where it is fast."""


RowFormat: TypeAlias = Literal["auto", "plain", "gsm8k", "math", "deepmath", "dapo"]


class JsonlTasks(Recipe):
    """Rows from a JSON-lines file."""

    kind: Literal["jsonl"]
    path: FilePath
    format: RowFormat = "auto"
    limit: PositiveInt | None = None


class ParquetTasks(Recipe):
    """Rows from a parquet file."""

    kind: Literal["parquet"]
    path: FilePath
    format: RowFormat = "auto"
    limit: PositiveInt | None = None


class HubTasks(Recipe):
    """Rows from a Hugging Face dataset, by name or by a folder that `save_to_disk` wrote."""

    kind: Literal["hub"]
    path: Name
    subset: str | None = None
    split: str = "train"
    format: RowFormat = "auto"
    limit: PositiveInt | None = None


class ReasoningGymTasks(Recipe):
    """Problems from a reasoning-gym generator."""

    kind: Literal["reasoning_gym"]
    name: str
    options: dict[str, Any] = {}
    """Passed to the generator; unknown ones are refused."""
    size: PositiveInt = 500
    seed: NonNegativeInt = 0


TasksConfig: TypeAlias = Annotated[
    JsonlTasks | ParquetTasks | HubTasks | ReasoningGymTasks, Field(discriminator="kind")
]


class ChatPrompt(Recipe):
    """The model's own chat template."""

    kind: Literal["chat"] = "chat"
    system: str | None = None
    thinking: bool = False
    """Handed to templates that know it (`enable_thinking`)."""
    suffix: str = ""
    """Added to the question, for example an instruction on the answer's form."""


class FewShotPrompt(Recipe):
    """Solved examples as plain text, then the question: for base and very small models."""

    kind: Literal["few_shot"]
    shots: PositiveInt = 4
    """Examples are taken from the front of the dataset and never trained on."""
    template: str = "Q: {question}\nA: {answer}"
    """One example; the prompt ends where {answer} would stand."""
    separator: str = "\n\n"
    """Between examples; a completion stops at its first line."""

    @model_validator(mode="after")
    def _template_has_both(self) -> FewShotPrompt:
        if "{question}" not in self.template or not self.template.rstrip().endswith("{answer}"):
            raise ValueError("template must contain {question} and end with {answer}")
        return self


PromptConfig: TypeAlias = Annotated[ChatPrompt | FewShotPrompt, Field(discriminator="kind")]


class MathVerifierConfig(Recipe):
    """Mathematical equality of the answer."""

    kind: Literal["math"] = "math"
    timeout: Annotated[PositiveFloat, Field(le=3600)] = 2.0
    """Seconds of wall clock for one grading."""
    workers: PositiveInt = 2


class ReasoningGymVerifierConfig(Recipe):
    """The generator's own scorer; needs reasoning-gym tasks."""

    kind: Literal["reasoning_gym"]


class FunctionVerifierConfig(Recipe):
    """A Python function of yours: (completion: str, task: Task) -> float; None, NaN, errors are invalid."""

    kind: Literal["function"]
    path: Name
    """`file.py:function` or `package.module:function`."""


VerifierConfig: TypeAlias = Annotated[
    MathVerifierConfig | ReasoningGymVerifierConfig | FunctionVerifierConfig, Field(discriminator="kind")
]


# --- rollouts -----------------------------------------------------------------------------------


class SamplingConfig(Recipe):
    """The law that rollouts are drawn from: softmax(logits / temperature), nothing cut off."""

    temperature: Annotated[PositiveFloat, Field(ge=1e-6, le=1e6)] = 1.0
    """Beyond these bounds float32 holds no law: all or nothing."""
    max_new_tokens: PositiveInt = 256
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Stop strings, beside the model's own stop tokens."""


class RolloutConfig(Recipe):
    """How many rollouts one step takes."""

    prompts_per_step: PositiveInt = 8
    samples_per_prompt: PositiveInt = 8


class EngineConfig(Recipe):
    """Limits of the engine."""

    max_running: PositiveInt = 128
    """Sequences that decode at the same time."""
    max_step_tokens: PositiveInt = 2048
    """Tokens through the network in one step, prefill and decode together."""
    cache_tokens: PositiveInt = 65_536
    """Tokens whose keys and values stay cached for later requests."""


# --- learning -----------------------------------------------------------------------------------


class AdvantageConfig(Recipe):
    """What a rollout deserves, compared with its group."""

    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale: Literal["none", "std"] = "none"


class LossConfig(Recipe):
    """PPO-clip and how tokens are averaged over one optimiser step."""

    objective: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Annotated[PositiveFloat, Field(le=1)] = 0.2
    """The ratio is bounded below by 1 - clip_low; 1 lets it fall freely."""
    clip_high: PositiveFloat = 0.28
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """token: mean over all trained tokens of the step. sequence: mean over rollouts of their token means.
    constant: sum over (rollouts * max_new_tokens), free of length bias."""


class OptimizerConfig(Recipe):
    """AdamW on float32 master weights."""

    learning_rate: Annotated[PositiveFloat, Field(le=1)] = 1e-6
    """The most that one step moves a weight by, about; 1 is far beyond anything that learns."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; linear and cosine end at zero after the last step."""
    warmup_steps: NonNegativeInt = 0
    weight_decay: Annotated[float, _Number, Field(ge=0, le=1)] = 0.0
    betas: tuple[Annotated[float, _Number], Annotated[float, _Number]] = (0.9, 0.95)
    max_grad_norm: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _betas_are_decays(self) -> OptimizerConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        return self


class TrainingConfig(Recipe):
    """How long, and how much goes through the network at once."""

    steps: PositiveInt = 100
    micro_batch_tokens: PositiveInt = 4096
    """Packed tokens in one forward and backward; changes memory and speed, never the gradient."""
    head_chunk_tokens: PositiveInt = 128
    """Tokens whose logits exist at the same time; changes memory and speed, never the gradient."""
    mismatch_tolerance: PositiveFloat = 0.1
    """Largest mean |engine - trainer| log-probability, nats, before the first step is refused."""
    save_every: PositiveInt | None = None
    """Steps between checkpoints; the last step and Ctrl-C always save."""


class EvaluationConfig(Recipe):
    """Greedy and sampled accuracy on problems that are not trained on."""

    tasks: PositiveInt = 64
    """How many, taken from the end of the dataset."""
    samples: NonNegativeInt = 4
    """k of avg@k, at the sampling temperature; 0: greedy only."""
    every: PositiveInt | None = None
    """Steps between evaluations while training; null: only before and after."""


class RunConfig(Recipe):
    """One run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: NonNegativeInt = 0
    output_dir: FilePath = Path("runs")
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig
    prompt: PromptConfig = ChatPrompt()
    verifier: VerifierConfig = MathVerifierConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> RunConfig:
        if self.rollout.samples_per_prompt == 1:
            raise ValueError(
                "rollout.samples_per_prompt = 1: a group of one has no baseline to be compared with and "
                "every advantage is 0; use 2 or more"
            )
        if self.verifier.kind == "reasoning_gym" and self.tasks.kind != "reasoning_gym":
            raise ValueError(
                f"verifier.kind = reasoning_gym scores only reasoning_gym tasks, not {self.tasks.kind}"
            )
        if self.optimizer.warmup_steps >= self.training.steps:
            raise ValueError(
                f"optimizer.warmup_steps = {self.optimizer.warmup_steps} leaves nothing of "
                f"training.steps = {self.training.steps}"
            )
        return self


# --- reading and writing ------------------------------------------------------------------------


class _NoDuplicates(yaml.SafeLoader):
    """YAML in which a key may come once: PyYAML itself would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)


# PyYAML lets through what Python says of an impossible date, of thousands of digits, of nesting without end.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns the recipe in the YAML file `path`, changed by dotted `key=value` overrides.

    Raises RecipeError in one line for a missing or unreadable file, an unknown key or a bad value.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: {error}") from error
    try:
        tree = yaml.load(text, _NoDuplicates)
    except _NOT_YAML as error:
        raise RecipeError(f"recipe {path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, got {type(tree).__name__}")
    for override in overrides:
        _apply(cast(dict[str, Any], tree), override)
    return parse_recipe(cast(dict[str, Any], tree))


def parse_recipe(tree: Mapping[str, Any]) -> RunConfig:
    """Returns `tree` as a recipe; raises RecipeError as `load_recipe` does."""
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise RecipeError("; ".join(_explain.explain(error.errors(include_url=False), RunConfig))) from error


def dump_recipe(config: RunConfig) -> str:
    """Returns the resolved recipe as YAML; loading it gives an equal recipe."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def all_keys() -> list[str]:
    """Returns the dotted names of all keys that a recipe can hold."""
    return _explain.all_keys(RunConfig)


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r}: expected key=value, for example training.steps=20")
    try:
        value = yaml.safe_load(text)
    except _NOT_YAML as error:
        raise RecipeError(f"override {override!r}: {text!r} is not a value") from error
    node = tree
    *sections, last = key.split(".")
    for section in sections:
        if node.get(section) is None:  # also `section: null`, which switches an optional one off
            node[section] = {}
        inner = node[section]
        if not isinstance(inner, dict):
            raise RecipeError(f"override {override!r}: {section!r} holds a value, not a section")
        node = cast(dict[str, Any], inner)
    node[last] = value
