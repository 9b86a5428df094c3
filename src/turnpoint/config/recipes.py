"""Whole recipes: what `turnpoint train` and `turnpoint sft` read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, model_validator

from turnpoint.branching.allocation import allocate_continuations as allocate
from turnpoint.config.asking import (
    ChatPrompt,
    MathVerifierConfig,
    ModelConfig,
    PromptConfig,
    TasksConfig,
    VerifierConfig,
)
from turnpoint.config.base import FilePath, NonNegativeInt, PositiveFloat, PositiveInt, Recipe
from turnpoint.config.branching import HindsightRuleConfig
from turnpoint.config.distillation import DistillConfig
from turnpoint.config.judge_fits import judge_fits
from turnpoint.config.learning import (
    AdvantageConfig,
    CorrectionConfig,
    EngineConfig,
    EvaluationConfig,
    GroupAdvantageConfig,
    KlConfig,
    LossConfig,
    OptimizerConfig,
    OverlongPenalty,
    PpoClipLoss,
    RolloutConfig,
    SamplingConfig,
    StepConfig,
    TrackersConfig,
    TrainingConfig,
)
from turnpoint.config.servers import ServerTeacher, check_server
from turnpoint.config.teachers_fit import teachers_fit

MOST_ROLLOUTS = 65_536  # of one step

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class RunConfig(Recipe):
    """One run."""

    name: _Name = "run"
    """Of the run folder."""
    seed: NonNegativeInt = 0
    """Of everything that is drawn: order of problems, samples, new adapters."""
    output_dir: FilePath = Path("runs")
    """Where run folders go."""
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig
    prompt: PromptConfig = ChatPrompt()
    verifier: VerifierConfig = MathVerifierConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    advantage: AdvantageConfig = GroupAdvantageConfig()
    loss: LossConfig = PpoClipLoss()
    kl: KlConfig | None = None
    correction: CorrectionConfig | None = None
    distill: DistillConfig | None = None
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig | None = None
    trackers: TrackersConfig = TrackersConfig()

    @model_validator(mode="before")
    @classmethod
    def _a_teacher_alone_is_not_clipped(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and "loss" not in tree:
            keys = cast(dict[str, Any], tree)
            how = keys.get("distill")
            if isinstance(how, dict) and cast(dict[str, Any], how).get("task") is False:
                return {**keys, "loss": {"kind": "reinforce"}}
        return cast(Any, tree)

    @property
    def taught_only(self) -> bool:
        """Whether a teacher alone says what tokens deserve, and rewards are only looked at."""
        return self.distill is not None and not self.distill.task

    @property
    def updates_per_step(self) -> int:
        """Optimiser updates for each batch of rollouts."""
        return self.training.epochs * self.training.mini_batches

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the steps of the whole run sample at most, dynamic sampling not counted."""
        rollouts = self.rollout.prompts_per_step * self.rollout.samples_per_prompt
        return self.training.steps * rollouts * self.sampling.max_new_tokens

    @model_validator(mode="after")
    def _parts_fit(self) -> RunConfig:
        if self.rollout.samples_per_prompt == 1 and not self.taught_only:
            raise ValueError(
                "rollout.samples_per_prompt = 1: a group of one has no baseline to be compared with and "
                "every advantage is 0; use 2 or more"
            )
        if (rollouts := self.rollout.prompts_per_step * self.rollout.samples_per_prompt) > MOST_ROLLOUTS:
            raise ValueError(
                f"rollout.prompts_per_step x rollout.samples_per_prompt = {rollouts} rollouts in one step, "
                f"which are all alive at once; at most {MOST_ROLLOUTS}"
            )
        updates = self.training.steps * self.updates_per_step
        if self.optimizer.warmup_steps >= updates:
            raise ValueError(
                f"optimizer.warmup_steps = {self.optimizer.warmup_steps} leaves nothing of the {updates} "
                f"updates of training.steps = {self.training.steps}"
            )
        prompts, parts = self.rollout.prompts_per_step, self.training.mini_batches
        if prompts % parts:
            raise ValueError(
                f"training.mini_batches = {parts} does not divide rollout.prompts_per_step = {prompts}: "
                f"every update takes its share of the step's prompts"
            )
        self._branching_fits()
        self._overlong_fits()
        self._reference_fits()
        self._teachers_fit()
        self._servers_fit()
        self._judge_fits()
        return self

    def _branching_fits(self) -> None:
        shape, size = self.rollout.branching, self.rollout.samples_per_prompt
        if shape is None:
            return
        made = shape.roots * (1 + sum(shape.continuations))
        if made != size:
            per_root, rest = divmod(size, shape.roots)
            instead = ""
            if per_root > 1 and not rest:
                fitting = allocate(per_root - 1, min(per_root - 1, len(shape.continuations)))
                instead = f", or continuations = {fitting}"
            raise ValueError(
                f"rollout.branching: {shape.roots} x (1 + {' + '.join(map(str, shape.continuations))}) = "
                f"{made} rollouts, and rollout.samples_per_prompt = {size}; set samples_per_prompt = "
                f"{made}{instead}"
            )
        longest = self.sampling.max_new_tokens
        apart = (len(shape.continuations) - 1) * shape.min_gap
        if shape.skip_first + shape.skip_last + apart >= longest:
            raise ValueError(
                f"rollout.branching: {len(shape.continuations)} points {shape.min_gap} tokens apart, behind "
                f"the first {shape.skip_first} and before the last {shape.skip_last}, never fit into "
                f"sampling.max_new_tokens = {longest}; lower min_gap, skip_first or skip_last"
            )
        if shape.deterministic and (self.engine.workers or 1) > 1:
            raise ValueError(
                f"rollout.branching.deterministic = true with engine.workers = {self.engine.workers}: "
                f"several processes answer in no fixed order; take engine.workers=1"
            )
        draft = self.engine.draft
        measured = {"adaptive": draft.adaptive, "tempered": draft.tempered} if draft else {}
        if shape.deterministic and (key := next((key for key, on in measured.items() if on), "")):
            raise ValueError(
                f"rollout.branching.deterministic = true with engine.draft.{key} = true: drafts that are "
                f"chosen by what was measured differ from run to run; take engine.draft.{key}=false"
            )
        decode = isinstance(shape.rule, HindsightRuleConfig) and shape.rule.base == "decode"
        if decode and self.sampling.temperature != 1:
            raise ValueError(
                f"rollout.branching.rule.base = decode needs sampling.temperature = 1, not "
                f"{self.sampling.temperature:g}: roots are scored at temperature 1; use base = prefill"
            )

    def _overlong_fits(self) -> None:
        overlong, limit = self.advantage.overlong, self.sampling.max_new_tokens
        if isinstance(overlong, OverlongPenalty) and overlong.buffer_tokens > limit:
            raise ValueError(
                f"advantage.overlong.buffer_tokens = {overlong.buffer_tokens} is more than "
                f"sampling.max_new_tokens = {limit}"
            )

    def _teachers_fit(self) -> None:
        how = self.distill
        if how is None:
            return
        shape = self.rollout.branching
        told = shape is not None and isinstance(shape.rule, HindsightRuleConfig)
        teachers_fit(how, aggregation=self.loss.aggregation, told=told)
        if self.taught_only and self.rollout.refill is not None:
            raise ValueError(
                "rollout.refill replaces groups whose rewards are equal, and with distill.task = false "
                "rewards teach nothing; take one of them out"
            )

    def _servers_fit(self) -> None:
        for name, teacher in self.distill.teachers.items() if self.distill else ():
            if isinstance(teacher, ServerTeacher):
                chat = self.prompt.kind == "chat"
                check_server(name, teacher, temperature=self.sampling.temperature, chat=chat)

    def _judge_fits(self) -> None:
        hindsight = self.distill is not None and self.distill.needs_verdicts
        judge_fits(
            self.verifier,
            self.tasks,
            taught_only=self.taught_only,
            needed_by={
                "evaluation": self.evaluation is not None,
                "rollout.branching": self.rollout.branching is not None,
                "distill.teachers of kind hindsight": hindsight,
            },
        )

    def _reference_fits(self) -> None:
        if self.kl is not None and self.kl.reference.kind == "base" and self.model.adapter is None:
            raise ValueError(
                "kl.reference.kind = base is the model without its adapter, and there is no model.adapter; "
                "kind = start is the model as it was"
            )


class SftTrainingConfig(StepConfig):
    """How long, and how much goes through the network at once."""

    epochs: PositiveFloat = 1.0
    """Passes over the examples."""
    examples_per_step: PositiveInt = 32


class SftConfig(Recipe):
    """Supervised fine-tuning on solutions: cross-entropy, mean over the solution tokens of a step."""

    name: _Name = "sft"
    """Of the run folder."""
    seed: NonNegativeInt = 0
    """Of the order of examples."""
    output_dir: FilePath = Path("runs")
    """Where run folders go."""
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig
    solution: str = "answer"
    """The column that holds what the model should write. A problem may have several rows, one for each
    solution."""
    prompt: PromptConfig = ChatPrompt()
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
    training: SftTrainingConfig = SftTrainingConfig()
    held_out: NonNegativeInt = 0
    """Problems from the end of the dataset, with all their solutions, that are only measured: cross-entropy
    before and after."""
    trackers: TrackersConfig = TrackersConfig()
