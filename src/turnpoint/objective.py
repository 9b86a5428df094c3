"""From a recipe to what is learned from a batch: advantages, refill, old and reference laws, the loss."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from turnpoint.assemble import Policy
from turnpoint.config import (
    BaseReference,
    CispoLoss,
    GroupAdvantageConfig,
    GspoLoss,
    HybridLoss,
    JensenShannonLoss,
    LossConfig,
    ModelReference,
    OptimizerConfig,
    OverlongMask,
    OverlongPenalty,
    PpoClipLoss,
    ReinforceLoss,
    RunConfig,
    SampledLoss,
    SiblingAdvantageConfig,
    StartReference,
    SubtreeAdvantageConfig,
)
from turnpoint.credit import GroupAdvantage, SiblingAdvantage, SubtreeAdvantage
from turnpoint.credit.overlong import MaskTruncated, Overlong, SoftPenalty
from turnpoint.errors import ModelError
from turnpoint.losses import distillation_loss, policy_gradient_loss
from turnpoint.models.adapter import base_state
from turnpoint.models.decoder import Decoder
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.protocols import Advantage, Loss
from turnpoint.rollout.refill import Refill
from turnpoint.training import reference
from turnpoint.training.memory import keep_freed_memory
from turnpoint.training.prepare import Correction, Preparation
from turnpoint.training.reference import FrozenReference, Law, Reference, trained_weights
from turnpoint.training.step import Pull, Signal, Trainer
from turnpoint.training.vocabulary import VocabularyTeachers
from turnpoint.types import Group


def make_advantage(config: RunConfig) -> Advantage:
    """Returns what rollouts deserve."""
    overlong = _overlong(config, penalty=True)
    match config.advantage:
        case GroupAdvantageConfig(baseline=baseline, scale=scale):
            return GroupAdvantage(baseline=baseline, scale=scale, overlong=overlong)
        case SiblingAdvantageConfig(decay=decay):
            return SiblingAdvantage(decay=decay, overlong=overlong)
        case SubtreeAdvantageConfig():
            return SubtreeAdvantage(overlong=overlong)


def make_refill(config: RunConfig) -> Refill | None:
    """Returns how groups that teach nothing are replaced.

    A group teaches when the verifier's own rewards differ; a penalty on length is not what it is about.
    """
    refill = config.rollout.refill
    if refill is None:
        return None
    plain = GroupAdvantage(overlong=_overlong(config, penalty=False))
    return Refill(
        rounds=refill.rounds,
        teaches=partial(_teaches, plain),
        stop_when_short=refill.when_short == "stop",
    )


def make_loss(loss: LossConfig) -> Loss:
    """Returns the policy-gradient loss."""
    match loss:
        case PpoClipLoss():
            clips = {"clip_low": loss.clip_low, "clip_high": loss.clip_high, "dual_clip": loss.dual_clip}
        case GspoLoss() | CispoLoss() | ReinforceLoss():
            clips = {"clip_low": loss.clip_low, "clip_high": loss.clip_high}
    return partial(policy_gradient_loss, objective=loss.kind, **clips)


def make_trainer(
    config: RunConfig, policy: Policy, *, teachers: Mapping[str, Decoder] | None = None
) -> Trainer:
    """Returns the trainer of `policy`; it trains the weights that the engine samples with, in place.

    `teachers`: those whose whole law is there, if the recipe learns from one.
    """
    return build_trainer(
        policy.model.decoder,
        config.optimizer,
        temperature=config.sampling.temperature,
        loss=make_loss(config.loss),
        pull=make_pull(config),
        signal=make_signal(config),
        vocabulary=_vocabulary(config, teachers or {}),
        head_chunk_tokens=config.training.head_chunk_tokens,
        recompute=config.training.recompute,
        total_steps=config.training.steps * config.updates_per_step,
    )


def build_trainer(
    decoder: Decoder,
    optimizer: OptimizerConfig,
    *,
    loss: Loss,
    head_chunk_tokens: int,
    recompute: bool,
    total_steps: int,
    temperature: float = 1.0,
    pull: Pull | None = None,
    signal: Signal | None = None,
    vocabulary: VocabularyTeachers | None = None,
) -> Trainer:
    """Returns a trainer of `decoder` that takes at most `total_steps` updates, as its schedule knows.

    On CPUs the process keeps from then on what memory it frees; see `keep_freed_memory`.
    """
    if decoder.device.type == "cpu":
        keep_freed_memory()
    return Trainer(
        decoder,
        temperature=temperature,
        loss=loss,
        pull=pull,
        signal=signal or Signal(),
        vocabulary=vocabulary,
        head_chunk_tokens=head_chunk_tokens,
        recompute=recompute,
        learning_rate=optimizer.learning_rate,
        betas=optimizer.betas,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        schedule=optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        total_steps=total_steps,
    )


def make_pull(config: RunConfig) -> Pull | None:
    """Returns the KL term of the loss."""
    return None if config.kl is None else Pull(coef=config.kl.coef, divergence=config.kl.divergence)


def make_signal(config: RunConfig) -> Signal:
    """Returns what is made of a teacher's word."""
    how = config.distill.loss if config.distill else None
    return Signal(clip=how.clip, discount=how.discount) if isinstance(how, SampledLoss) else Signal()


def _vocabulary(config: RunConfig, teachers: Mapping[str, Decoder]) -> VocabularyTeachers | None:
    if config.distill is None or isinstance(config.distill.loss, SampledLoss) or not teachers:
        return None
    how = config.distill.loss
    return VocabularyTeachers(
        decoders=teachers,
        loss=distillation_loss(
            how.kind,
            k=how.k if isinstance(how, HybridLoss) else None,
            beta=how.beta if isinstance(how, JensenShannonLoss) else None,
        ),
        chunk=config.training.head_chunk_tokens,
        temperature=config.sampling.temperature,
    )


def make_reference(config: RunConfig, policy: Policy) -> Reference | None:
    """Returns the law that the KL term pulls towards; None without one.

    Call it before a checkpoint is loaded: the start is what the policy holds now. Raises ModelError for
    another model whose vocabulary differs.
    """
    if config.kl is None:
        return None
    decoder = policy.model.decoder
    law = Law(temperature=config.sampling.temperature, chunk=config.training.head_chunk_tokens)
    match config.kl.reference:
        case StartReference():
            return FrozenReference(decoder=decoder, weights=trained_weights(decoder.model), law=law)
        case BaseReference():
            return FrozenReference(decoder=decoder, weights=base_state(decoder.model), law=law)
        case ModelReference(path=path):
            other = load_model(path, device=config.model.device, dtype=config.model.dtype)
            _check_same_vocabulary(policy, other)
            return reference.ModelReference(decoder=other.decoder, law=law)


def make_preparation(config: RunConfig, trainer: Trainer, towards: Reference | None) -> Preparation:
    """Returns what completes a packed batch before its first update."""
    how = config.correction
    return Preparation(
        logprobs=trainer.logprobs,
        reference=towards,
        correction=None if how is None else Correction(cap=how.cap, level=how.level),
    )


def _overlong(config: RunConfig, *, penalty: bool) -> Overlong | None:
    match config.advantage.overlong:
        case OverlongMask():
            return MaskTruncated()
        case OverlongPenalty(buffer_tokens=buffer, factor=factor) if penalty:
            return SoftPenalty(max_tokens=config.sampling.max_new_tokens, buffer_tokens=buffer, factor=factor)
        case _:
            return None


def _teaches(advantage: GroupAdvantage, group: Group) -> bool:
    return any(
        credit.advantages is not None and credit.advantages.any() for credit in advantage.credit(group)
    )


def _check_same_vocabulary(policy: Policy, other: LoadedModel) -> None:
    mine, theirs = policy.model.tokenizer.get_vocab(), other.tokenizer.get_vocab()
    if mine != theirs:
        differing = sum(theirs.get(token) != number for token, number in mine.items())
        raise ModelError(
            f"kl.reference.path = {other.source}: its vocabulary is not that of {policy.model.source} "
            f"({len(theirs)} against {len(mine)} tokens, {differing} with another id); a divergence needs "
            f"one vocabulary"
        )
