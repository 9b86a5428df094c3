"""Sections on sampling and learning: how much is drawn, what it deserves, how weights move."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from turnpoint.config.base import Name, NonNegativeInt, Number, PositiveFloat, PositiveInt, Recipe, kind_or
from turnpoint.config.branching import BranchingConfig
from turnpoint.config.speculation import EngineDraftConfig

MOST_SAMPLES = 4096  # of one problem


class SamplingConfig(Recipe):
    """The law that rollouts are drawn from: softmax(logits / temperature), nothing cut off."""

    temperature: Annotated[PositiveFloat, Field(ge=1e-6, le=1e6)] = 1.0
    """Beyond these bounds float32 holds no law: all or nothing."""
    max_new_tokens: PositiveInt = 256
    """Where a completion is cut off."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Stop strings, beside the model's own stop tokens."""


class RefillConfig(Recipe):
    """Dynamic sampling (DAPO, arXiv 2503.14476): a group whose rewards are all equal teaches nothing; it is
    set aside, counted, and another prompt takes its place."""

    rounds: PositiveInt = 5
    """How often at most missing groups are drawn again in one step."""
    when_short: Literal["train", "stop"] = "train"
    """What follows when there are still too few: a smaller step with a warning, or the end of the run."""


class RolloutConfig(Recipe):
    """How many rollouts one step takes."""

    prompts_per_step: PositiveInt = 8
    """Groups."""
    samples_per_prompt: PositiveInt = 8
    """Rollouts of a group, which are compared with each other; at least 2."""
    refill: RefillConfig | None = None
    """null: every group counts, those without signal too."""
    branching: BranchingConfig | None = None
    """null: all rollouts of a group come from the prompt."""


class EngineConfig(Recipe):
    """Limits of the engine."""

    max_running: PositiveInt = 128
    """Sequences that decode at the same time."""
    max_step_tokens: PositiveInt = 2048
    """Tokens through the network in one step, prefill and decode together."""
    cache_tokens: PositiveInt = 65_536
    """Tokens whose keys and values stay cached for later requests."""
    workers: PositiveInt | None = None
    """Processes that sample, on CPUs; they divide threads, running sequences and cached tokens between them.
    null: one for each thread, at most 4, for models up to 1e9 weights and runs long enough to pay for their
    start; else 1, which is this process itself."""
    draft: EngineDraftConfig | None = None
    """Speculative decoding by draft heads; null: one token per pass. The law that is sampled is the same."""


class OverlongPenalty(Recipe):
    """Soft overlong punishment (DAPO, arXiv 2503.14476): length costs reward before the limit is reached."""

    kind: Literal["penalty"] = "penalty"
    buffer_tokens: PositiveInt
    """The penalty grows from 0 to `factor` over the last tokens before sampling.max_new_tokens."""
    factor: PositiveFloat = 1.0
    """The reward that a truncated rollout loses."""


class OverlongMask(Recipe):
    """Overlong filtering: a truncated rollout is as if it had never been sampled."""

    kind: Literal["mask"]


OverlongConfig: TypeAlias = Annotated[
    Annotated[OverlongPenalty, Tag("penalty")] | Annotated[OverlongMask, Tag("mask")],
    Discriminator(kind_or("penalty")),
]


class GroupAdvantageConfig(Recipe):
    """What a rollout deserves, compared with its group; a continuation's is its suffix's."""

    kind: Literal["group"] = "group"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What is taken from a reward: the mean of its group, or of the others in it (RLOO, arXiv 2402.14740)."""
    scale: Literal["none", "std"] = "none"
    """std: divided by the standard deviation of the group (GRPO, arXiv 2402.03300)."""
    overlong: OverlongConfig | None = None
    """null: a truncated rollout is judged like any other."""


class SiblingAdvantageConfig(Recipe):
    """Compared where rollouts part: at a fork with its siblings, at the start with other roots; each time
    with the mean of the others (after BPO, arXiv 2607.14171)."""

    kind: Literal["sibling_leave_one_out"]
    decay: Annotated[float, Number, Field(ge=0, le=1)] = 0.95
    """Per token, of what a comparison at a fork says of the root's tokens before it; 0: nothing."""
    overlong: OverlongConfig | None = None
    """null: a truncated rollout is judged like any other."""


class SubtreeAdvantageConfig(Recipe):
    """What the tokens between two forks changed in the mean reward of all that pass through them."""

    kind: Literal["subtree_value"]
    overlong: OverlongConfig | None = None
    """null: a truncated rollout is judged like any other."""


AdvantageConfig: TypeAlias = Annotated[
    Annotated[GroupAdvantageConfig, Tag("group")]
    | Annotated[SiblingAdvantageConfig, Tag("sibling_leave_one_out")]
    | Annotated[SubtreeAdvantageConfig, Tag("subtree_value")],
    Discriminator(kind_or("group")),
]


_ClipLow: TypeAlias = Annotated[PositiveFloat, Field(le=1)]
Aggregation: TypeAlias = Literal["token", "sequence", "constant"]


class PpoClipLoss(Recipe):
    """PPO-clip with a bound for each side, and how tokens are averaged over one update."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    clip_low: _ClipLow = 0.2
    """The ratio is bounded below by 1 - clip_low; 1 lets it fall freely."""
    clip_high: PositiveFloat = 0.28
    dual_clip: Annotated[PositiveFloat, Field(gt=1)] | None = None
    """Bounds the ratio of tokens with a negative advantage from above (arXiv 1912.09729); 3 is common."""
    aggregation: Aggregation = "token"
    """token: mean over all trained tokens of the update. sequence: mean over rollouts of their token means.
    constant: sum over (rollouts * max_new_tokens), free of length bias (Dr. GRPO, arXiv 2503.20783)."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> PpoClipLoss:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip = {self.dual_clip:g} is inside the clip of 1 + clip_high = {1 + self.clip_high:g}"
            )
        return self


class GspoLoss(Recipe):
    """GSPO (arXiv 2507.18071): one ratio per rollout, its geometric mean over tokens; mean over rollouts."""

    kind: Literal["gspo"]
    clip_low: _ClipLow = 3e-4
    clip_high: PositiveFloat = 4e-4

    @property
    def aggregation(self) -> Aggregation:
        """What the paper defines it with."""
        return "sequence"


class CispoLoss(Recipe):
    """CISPO (arXiv 2506.13585): the clipped ratio only weights the gradient, no token loses it."""

    kind: Literal["cispo"]
    clip_low: _ClipLow = 1.0
    """1: no lower bound, as in the paper."""
    clip_high: PositiveFloat = 0.28
    aggregation: Aggregation = "token"


class ReinforceLoss(Recipe):
    """The policy gradient with truncated importance weights and no clip: what tokens a teacher sends far away
    are not silenced. The default where a teacher alone says what tokens deserve."""

    kind: Literal["reinforce"]
    cap: Annotated[PositiveFloat, Field(ge=1)] = 2.0
    """The largest weight of a token, now / when it was sampled."""
    aggregation: Aggregation = "token"

    @property
    def clip_low(self) -> float:
        """There is no lower bound."""
        return 1.0

    @property
    def clip_high(self) -> float:
        """The cap, as other kinds write it."""
        return self.cap - 1


LossConfig: TypeAlias = Annotated[
    Annotated[PpoClipLoss, Tag("ppo_clip")]
    | Annotated[GspoLoss, Tag("gspo")]
    | Annotated[CispoLoss, Tag("cispo")]
    | Annotated[ReinforceLoss, Tag("reinforce")],
    Discriminator(kind_or("ppo_clip")),
]


class StartReference(Recipe):
    """The policy as the run began, adapter included: the divergence starts at 0."""

    kind: Literal["start"] = "start"


class BaseReference(Recipe):
    """The model without its adapter."""

    kind: Literal["base"]


class ModelReference(Recipe):
    """Another model with the same vocabulary."""

    kind: Literal["model"]
    path: Name
    """A folder or a hub name."""


ReferenceConfig: TypeAlias = Annotated[
    Annotated[StartReference, Tag("start")]
    | Annotated[BaseReference, Tag("base")]
    | Annotated[ModelReference, Tag("model")],
    Discriminator(kind_or("start")),
]


class KlConfig(Recipe):
    """A pull towards a reference: coef times a divergence, averaged over tokens as the loss is."""

    coef: Annotated[PositiveFloat, Field(le=1e6)]
    """How much a nat of divergence costs, in units of the advantage."""
    divergence: Literal["reverse", "forward"] = "reverse"
    """The divergence whose gradient is followed. reverse: KL(policy || reference), the k2 estimator.
    forward: KL(reference || policy), k3. k1 as a loss has no expected gradient and cannot be chosen."""
    reference: ReferenceConfig = StartReference()


class CorrectionConfig(Recipe):
    """Truncated importance weights for what engine and trainer round differently: the trainer's own
    log-probabilities become the old ones, and min(trainer / engine, cap) weights each token."""

    cap: Annotated[PositiveFloat, Field(ge=1)] = 2.0
    """The largest weight."""
    level: Literal["token", "sequence"] = "token"
    """token: one ratio per token. sequence: the product over a rollout's tokens."""


class OptimizerConfig(Recipe):
    """AdamW on float32 master weights."""

    learning_rate: Annotated[PositiveFloat, Field(le=1)] = 1e-6
    """The most that one step moves a weight by, about; 1 is far beyond anything that learns."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; linear and cosine end at zero after the last step."""
    warmup_steps: NonNegativeInt = 0
    """Updates until the full learning rate."""
    weight_decay: Annotated[float, Number, Field(ge=0, le=1)] = 0.0
    betas: tuple[Annotated[float, Number], Annotated[float, Number]] = (0.9, 0.95)
    max_grad_norm: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _betas_are_decays(self) -> OptimizerConfig:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        return self


class StepConfig(Recipe):
    """How much goes through the network at once, and when a run saves."""

    micro_batch_tokens: PositiveInt = 4096
    """Packed tokens in one forward and backward; changes memory and speed, never the gradient."""
    head_chunk_tokens: PositiveInt = 128
    """Tokens whose logits exist at the same time; changes memory and speed, never the gradient."""
    recompute: bool = False
    """Layers keep their inputs alone and are computed again in backward: much less memory, about a third more
    time, the same gradient."""
    save_every: PositiveInt | None = None
    """Steps between checkpoints; the last step and Ctrl-C always save."""
    keep: PositiveInt | None = None
    """How many checkpoints stay, the latest ones; null: all."""


class TrainingConfig(StepConfig):
    """How long, how often each batch is used, and how much goes through the network at once."""

    steps: PositiveInt = 100
    """Batches of rollouts; each gives epochs * mini_batches updates."""
    epochs: PositiveInt = 1
    """How often each batch is gone through."""
    mini_batches: PositiveInt = 1
    """Updates per epoch, each over its share of the step's prompts."""
    mismatch_tolerance: PositiveFloat = 0.1
    """Largest mean |engine - trainer| log-probability, nats, before the first step is refused."""


class EvaluationConfig(Recipe):
    """Greedy and sampled accuracy on problems that are not trained on."""

    tasks: PositiveInt = 64
    """How many, taken from the end of the dataset."""
    samples: Annotated[NonNegativeInt, Field(le=MOST_SAMPLES)] = 4
    """k of avg@k, at the sampling temperature; 0: greedy only."""
    top_k: NonNegativeInt = 0
    """Samples are drawn from the k likeliest tokens alone; 0: from all. Rollouts that train are never cut."""
    top_p: Annotated[float, Number, Field(gt=0, le=1)] = 1.0
    """And of those from the fewest that have this mass together; 1: all."""
    every: PositiveInt | None = None
    """Steps between evaluations while training; null: only before and after."""

    @model_validator(mode="after")
    def _cuts_have_samples(self) -> EvaluationConfig:
        if not self.samples and (self.top_k or self.top_p < 1):
            raise ValueError(
                f"top_k = {self.top_k} and top_p = {self.top_p:g} cut what samples are drawn from, and "
                f"samples = 0; take samples=4, or leave them out"
            )
        return self


class TensorBoardConfig(Recipe):
    """Event files in the run folder."""


class TrackioConfig(Recipe):
    """A local trackio dashboard."""

    project: str = "turnpoint"


class WandbConfig(Recipe):
    """Weights & Biases."""

    project: str = "turnpoint"
    mode: Literal["online", "offline"] = "online"


class TrackersConfig(Recipe):
    """Where figures go beside the run folder; one that fails is dropped with a warning, the run goes on."""

    tensorboard: TensorBoardConfig | None = None
    trackio: TrackioConfig | None = None
    wandb: WandbConfig | None = None
