"""The objective that is in force, in words: what an advantage is, which loss, how often a batch is used."""

from __future__ import annotations

from turnpoint.config import (
    CispoLoss,
    DistillConfig,
    DistillLossConfig,
    EmaTeacher,
    ForwardKlLoss,
    GroupAdvantageConfig,
    GspoLoss,
    HindsightTeacher,
    HybridLoss,
    JensenShannonLoss,
    LossConfig,
    MixtureTeacher,
    ModelReference,
    OverlongMask,
    OverlongPenalty,
    PpoClipLoss,
    ReinforceLoss,
    ReverseKlLoss,
    RunConfig,
    SampledLoss,
    ServerTeacher,
    SiblingAdvantageConfig,
    StartTeacher,
    SubtreeAdvantageConfig,
    TeacherConfig,
)
from turnpoint.reports.text import number, plural, visible

_BASELINES = {"mean": "group mean", "leave_one_out": "mean of the others in the group"}
_AGGREGATIONS = {
    "token": "mean over all tokens of the update",
    "sequence": "mean over rollouts of their token means",
}


def objective_lines(config: RunConfig) -> list[str]:
    """Returns advantage, loss and updates of `config`, a line each."""
    share = (
        config.rollout.prompts_per_step * config.rollout.samples_per_prompt // config.training.mini_batches
    )
    fixed = f"sum over tokens / ({number(share)} rollouts x {number(config.sampling.max_new_tokens)})"
    mean = _AGGREGATIONS.get(config.loss.aggregation, fixed)
    return [
        f"advantage = {_advantage(config)}; temperature {config.sampling.temperature:g}",
        *_teachers(config),
        f"{_clip(config.loss)}; loss = {mean}; {_kl(config)}",
        _updates(config),
    ]


def _teachers(config: RunConfig) -> list[str]:
    if (how := config.distill) is None:
        return []
    names = ", ".join(f"{name} ({_teacher(it)}{_counts(how, name)})" for name, it in how.teachers.items())
    chosen = f", chosen by column {how.key!r}" if how.key else ""
    return [f"{_word(how.loss)}; {names}{chosen}"]


def _counts(how: DistillConfig, name: str) -> str:
    """Says how much a teacher counts; a part of a mixture that no problem has does not by itself."""
    if name not in how.chosen:
        return ""
    teacher = how.teachers[name]
    share = f", share {teacher.share:g}" if teacher.share is not None else ""
    return f", coef {how.coef if teacher.coef is None else teacher.coef:g}{share}"


def _word(loss: DistillLossConfig) -> str:
    match loss:
        case SampledLoss(clip=clip, discount=discount):
            bound = f", |d| at most {clip:g} nats" if clip else ""
            later = f", later ones discounted by {discount:g}" if discount else ""
            return f"d = log p_teacher - log p_policy of each token{bound}{later}"
        case HybridLoss(k=k):
            return (
                f"+ coef * KL(policy || teacher) at each prefix, exact on the policy's {k}, sampled outside"
            )
        case ReverseKlLoss():
            return "+ coef * KL(policy || teacher) at each prefix, over all tokens"
        case ForwardKlLoss():
            return "+ coef * KL(teacher || policy) at each prefix, over all tokens"
        case JensenShannonLoss(beta=beta):
            return f"+ coef * Jensen-Shannon({beta:g}) at each prefix, over all tokens"


def _teacher(teacher: TeacherConfig) -> str:
    match teacher:
        case HindsightTeacher(source="feedback"):
            return "the policy, told the record"
        case HindsightTeacher(source="branch"):
            return "the policy, told what the branch rule tells it"
        case HindsightTeacher():
            return "the policy, told a solution"
        case StartTeacher():
            return "the policy as it began"
        case EmaTeacher(decay=decay):
            return f"average of the policy, decay {decay:g}"
        case MixtureTeacher(of=of, mean=mean):
            return f"{mean} mean of " + ", ".join(f"{weight:g} {part}" for part, weight in of.items())
        case ServerTeacher():
            return visible(f"{teacher.model or 'the model'} behind {teacher.url}")
        case _:
            return visible(str(teacher.path))


def _advantage(config: RunConfig) -> str:
    sampled = config.distill is not None and config.distill.loss.kind == "sampled"
    if config.taught_only:
        alone = "coef * d alone" if sampled else "none, the teacher's divergence alone"
        return f"{alone}; rewards are only looked at"
    return _task_advantage(config) + (" + coef * d" if sampled else "")


def _task_advantage(config: RunConfig) -> str:
    reward = "reward" + _overlong(config)
    match config.advantage:
        case GroupAdvantageConfig(baseline=baseline, scale=scale):
            divided = "divided by the group's std" if scale == "std" else "not divided by std"
            return f"{reward} - {_BASELINES[baseline]}, {divided}"
        case SiblingAdvantageConfig(decay=decay):
            return f"{reward} - mean of the others at a fork, carried upstream with decay {decay:g}"
        case SubtreeAdvantageConfig():
            return f"change of the mean {reward} among all that pass, between forks"


def _overlong(config: RunConfig) -> str:
    match config.advantage.overlong:
        case OverlongPenalty(buffer_tokens=buffer, factor=factor):
            return f" - up to {factor:g} over the last {plural(buffer, 'token')} before the limit"
        case OverlongMask():
            return " of rollouts that were not truncated"
        case None:
            return ""


def _clip(loss: LossConfig) -> str:
    bounds = f"{loss.clip_low:g}/{loss.clip_high:g}"
    match loss:
        case PpoClipLoss(dual_clip=dual):
            return f"PPO clip {bounds}" + (f", dual clip {dual:g}" if dual else "")
        case GspoLoss():
            return f"GSPO: one ratio per rollout, clip {bounds}"
        case ReinforceLoss(cap=cap):
            return f"no clip: importance weights of at most {cap:g}"
        case CispoLoss(clip_low=1.0):
            return f"CISPO: ratio as a weight, at most {1 + loss.clip_high:g}"
        case CispoLoss():
            return f"CISPO: ratio as a weight, {1 - loss.clip_low:g} to {1 + loss.clip_high:g}"


_REFERENCES = {"start": "the policy as it starts", "base": "the model without its adapter"}


def _kl(config: RunConfig) -> str:
    if config.kl is None:
        return "no KL"
    kind = config.kl.reference
    other = visible(kind.path) if isinstance(kind, ModelReference) else _REFERENCES[kind.kind]
    order = f"policy || {other}" if config.kl.divergence == "reverse" else f"{other} || policy"
    return f"+ {config.kl.coef:g} KL({order})"


def _updates(config: RunConfig) -> str:
    updates = config.updates_per_step
    parts = [
        "1 update per batch: on-policy, ratio = 1 up to rounding"
        if updates == 1
        else f"{updates} updates per batch, {config.training.epochs} x {config.training.mini_batches}: "
        f"off-policy after the first"
    ]
    if how := config.correction:
        parts.append(f"importance weights trainer / engine per {how.level}, at most {how.cap:g}")
    if refill := config.rollout.refill:
        parts.append(
            f"groups with equal rewards replaced, {plural(refill.rounds, 'round')} at most "
            f"(when too few: {refill.when_short})"
        )
    return "; ".join(parts)
