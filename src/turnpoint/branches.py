"""From a recipe to groups that fork: their shape, the rule that says where, the gate of reflections."""

from __future__ import annotations

from dataclasses import dataclass

from turnpoint.assemble import Policy
from turnpoint.branching.candidates import Candidates
from turnpoint.branching.common import Selection
from turnpoint.branching.entropy import EntropyRule
from turnpoint.branching.gate import Gate
from turnpoint.branching.hindsight import HindsightRule, Source
from turnpoint.branching.random import RandomRule
from turnpoint.branching.reflector import Reflector
from turnpoint.branching.steps import StepsRule
from turnpoint.branching.surprisal import SurprisalRule
from turnpoint.config import (
    BranchingConfig,
    EntropyRuleConfig,
    HindsightRuleConfig,
    RandomRuleConfig,
    ReflectionSource,
    RunConfig,
    StepsRuleConfig,
    SurprisalRuleConfig,
)
from turnpoint.errors import ModelError, RecipeError
from turnpoint.models.renderer import ChatRenderer
from turnpoint.protocols import BranchRule
from turnpoint.rollout.branched import Branching
from turnpoint.teachers.remembered import RememberedRule, RememberedScores


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """What a run forks with."""

    branching: Branching
    gate: Gate | None


def make_branches(
    config: RunConfig, policy: Policy, *, remembered: RememberedScores | None = None
) -> Branches | None:
    """Returns how groups of `config` fork; None when they do not. What the rule asks is `remembered`.

    Raises ModelError when reflections are asked of a model without a chat template, and RecipeError when its
    context has no room for them.
    """
    shape = config.rollout.branching
    if shape is None:
        return None
    gate = _gate(shape)
    rule = _rule(config, shape, policy, gate)
    return Branches(
        branching=Branching(
            rule=rule if remembered is None else RememberedRule(rule=rule, scores=remembered),
            roots=shape.roots,
            continuations=shape.continuations,
            deterministic=shape.deterministic,
        ),
        gate=gate,
    )


def _gate(shape: BranchingConfig) -> Gate | None:
    source = shape.rule.source if isinstance(shape.rule, HindsightRuleConfig) else None
    how = source.gate if isinstance(source, ReflectionSource) else None
    return None if how is None else Gate(threshold=how.agreement, steps=how.steps)


def _rule(config: RunConfig, shape: BranchingConfig, policy: Policy, gate: Gate | None) -> BranchRule:
    selection = Selection(
        count=len(shape.continuations),
        candidates=Candidates(
            policy.renderer.text,
            stop_ids=policy.renderer.stop_ids,
            blanks=shape.blanks,
            punctuation=shape.punctuation,
        ),
        min_gap=shape.min_gap,
        skip_first=shape.skip_first,
        skip_last=shape.skip_last,
    )
    match shape.rule:
        case HindsightRuleConfig() as rule:
            source = rule.source
            asks = isinstance(source, ReflectionSource)
            return HindsightRule(
                selection=selection,
                renderer=policy.renderer,
                source=Source(source.kind),
                reflector=_reflector(config, policy, source.max_tokens) if asks else None,
                gate=gate,
                feedback_characters=rule.feedback_characters,
                direction=rule.direction,
                weigh_alternatives=rule.weigh_alternatives,
                base_from_decode=rule.base == "decode",
            )
        case StepsRuleConfig() as rule:
            return StepsRule(
                selection=selection,
                renderer=policy.renderer,
                reflector=_reflector(config, policy, rule.max_tokens),
                feedback_characters=rule.feedback_characters,
            )
        case EntropyRuleConfig():
            return EntropyRule(selection=selection)
        case SurprisalRuleConfig():
            return SurprisalRule(selection=selection)
        case RandomRuleConfig():
            return RandomRule(selection=selection, seed=config.seed)


def _reflector(config: RunConfig, policy: Policy, max_tokens: int) -> Reflector:
    if not policy.model.tokenizer.chat_template:
        raise ModelError(
            f"rollout.branching.rule: {policy.model.source} has no chat template by which to ask for a "
            f"reflection; use rule.source.kind = feedback or sibling, or another rule"
        )
    if max_tokens >= policy.model.context_length:
        raise RecipeError(
            f"rollout.branching.rule: a reflection of up to {max_tokens} tokens has no room in the context "
            f"of {policy.model.context_length}; lower its max_tokens"
        )
    return Reflector(
        renderer=ChatRenderer(policy.model.tokenizer, stop_ids=policy.model.stop_ids),
        max_tokens=max_tokens,
        temperature=config.sampling.temperature,
        seed=config.seed,
    )
