"""What a run is about to do, in one unit (prompts, samples, tokens), before anything is spent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnpoint.config import (
    ChatPrompt,
    CodeVerifierConfig,
    EngineDraftConfig,
    EvaluationConfig,
    FewShotPrompt,
    FunctionVerifierConfig,
    MathVerifierConfig,
    NoVerifierConfig,
    OptimizerConfig,
    PromptConfig,
    ReasoningGymVerifierConfig,
    RunConfig,
    StepConfig,
    VerifierConfig,
)
from turnpoint.reports.plan_branching import branching_lines
from turnpoint.reports.plan_objective import objective_lines
from turnpoint.reports.text import cut, number, plural, visible
from turnpoint.verifiers.sandbox.records import Isolation
from turnpoint.verifiers.sandbox.sandbox import ISOLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What the plan says about a LoRA adapter."""

    ranks: tuple[int, ...]  # rising; one but for patterns
    matrices: int  # of the model that it adds to
    parameters: int  # its own, that train


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the plan says about the model."""

    name: str
    parameters: int  # without adapter
    dtype: str
    device: str
    context_length: int  # tokens
    adapter: AdapterFacts | None  # None: all parameters train


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run and the page that shows them."""

    name: str
    steps: int
    rollouts_per_step: int
    max_tokens_per_step: int  # generated
    micro_batches: int  # upper estimate, when every rollout is as long as allowed
    entries: tuple[tuple[str, tuple[str, ...]], ...]  # label, lines
    first_prompt: tuple[str, ...]  # lines, made visible
    first_prompt_tokens: int


def make_plan(
    config: RunConfig,
    *,
    model: ModelFacts,
    data: Sequence[str],
    num_train: int,
    num_eval: int,
    prompt_lengths: Sequence[int],
    first_prompt: str,
    folder: Path,
    workers: int,
    threads: int,
    teachers: Sequence[str] = (),
) -> Plan:
    """Returns the plan of `config`.

    `data`: the dataset's own report, line by line. `prompt_lengths`: tokens of the training prompts as they
    will be sent, the first one's first. `first_prompt`: that prompt decoded with its special tokens.
    `workers` processes sample, on `threads` threads each. `teachers`: what each holds in memory.
    Sizes that cannot work were refused with the recipe; nothing is checked here. Raises ValueError
    without prompts.
    """
    if not prompt_lengths:
        raise ValueError("a plan needs prompts to train on, got none")
    rollouts = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    generated = rollouts * config.sampling.max_new_tokens
    packed = generated + config.rollout.prompts_per_step * statistics.fmean(prompt_lengths)
    micro_batches = math.ceil(packed / config.training.micro_batch_tokens)
    return Plan(
        name=config.name,
        steps=config.training.steps,
        rollouts_per_step=rollouts,
        max_tokens_per_step=generated,
        micro_batches=micro_batches,
        entries=(
            ("model", tuple(model_lines(model))),
            ("data", (*data, f"{number(num_train)} to train on, {number(num_eval)} to evaluate")),
            ("prompt", tuple(_prompt(config, prompt_lengths, model.context_length))),
            ("sampling", (_sampling(workers, threads, config.engine.draft),)),
            ("verifier", (_verifier(config.verifier),)),
            ("step", tuple(_step(config, rollouts, generated, micro_batches, max(prompt_lengths)))),
            ("run", (_run(config, num_train), _evaluation(config.evaluation))),
            ("objective", tuple(objective_lines(config))),
            *([("teachers", tuple(teachers))] if teachers else []),
            ("optimizer", (optimizer_line(config.optimizer),)),
            (
                "files",
                (files_line(folder, "metrics.jsonl, rollouts.jsonl", save_every=config.training.save_every),),
            ),
        ),
        first_prompt=tuple(prompt_lines(first_prompt)),
        first_prompt_tokens=prompt_lengths[0],
    )


def model_lines(model: ModelFacts) -> list[str]:
    """Says which model it is, how large and where, and what of it trains."""
    lines = [
        f"{visible(model.name)}: {number(model.parameters)} parameters, {model.dtype} on {model.device}, "
        f"context {number(model.context_length)} tokens"
    ]
    if (adapter := model.adapter) is not None:
        rank = " to ".join(str(rank) for rank in dict.fromkeys((adapter.ranks[0], adapter.ranks[-1])))
        lines.append(
            f"LoRA rank {rank} on {plural(adapter.matrices, 'matrix', 'matrices')}: "
            f"{number(adapter.parameters)} parameters train, those of the model are frozen"
        )
    return lines


def _prompt(config: RunConfig, lengths: Sequence[int], context: int) -> list[str]:
    longest, new = max(lengths), config.sampling.max_new_tokens
    return [
        prompt_form(config.prompt),
        f"{min(lengths)} to {longest} tokens, median {statistics.median(lengths):.0f}; "
        f"longest + {number(new)} new = {number(longest + new)} of {number(context)} in the context",
    ]


def prompt_form(prompt: PromptConfig) -> str:
    """Says how a prompt is made of a question."""
    match prompt:
        case ChatPrompt():
            system = f', system message "{cut(prompt.system, 40)}"' if prompt.system else ""
            suffix = f', question + "{cut(prompt.suffix, 40)}"' if prompt.suffix else ""
            thinking = ", thinking" if prompt.thinking else ""
            return f"chat template of the model{system}{thinking}{suffix}"
        case FewShotPrompt():
            return (
                f"{plural(prompt.shots, 'solved example')} as plain text, then the question; no chat template"
            )


def _sampling(workers: int, threads: int, draft: EngineDraftConfig | None) -> str:
    where = (
        f"in this process, on {plural(threads, 'thread')}"
        if workers == 1
        else f"in {workers} processes with {plural(threads, 'thread')} each: small models sample faster so"
    )
    if draft is None:
        return where
    depth = f"{'at most ' if draft.adaptive else ''}{plural(draft.depth, 'token')} a round"
    return f"{where}; drafts of {depth} by {visible(str(draft.heads))}, verified by {draft.mode}"


def _verifier(verifier: VerifierConfig) -> str:
    match verifier:
        case MathVerifierConfig():
            limits = f"{verifier.timeout:g} s at most, {verifier.workers} workers"
            return f"mathematical equality of the answer; {limits}"
        case CodeVerifierConfig():
            earns = "the share of tests passed" if verifier.reward == "fraction" else "1 for all tests passed"
            level = Isolation(verifier.isolation)
            return (
                f"{earns}, at most {verifier.max_tests} a problem ({verifier.choose} first), "
                f"{verifier.timeout:g} s each; isolation {level}: {ISOLATION[level]}"
            )
        case NoVerifierConfig():
            return "none: nobody judges"
        case ReasoningGymVerifierConfig():
            return "the generator's own scorer"
        case FunctionVerifierConfig():
            return f"your function {visible(verifier.path)}"


def _step(config: RunConfig, rollouts: int, generated: int, micro_batches: int, longest: int) -> list[str]:
    sizes, training, new = config.rollout, config.training, config.sampling.max_new_tokens
    lines = [
        f"{plural(sizes.prompts_per_step, 'prompt')} x {sizes.samples_per_prompt} samples -> "
        f"{number(rollouts)} rollouts -> {_per_batch(config, rollouts)}",
        f"up to {number(generated)} new tokens ({number(new)} each), trained in up to about "
        f"{plural(micro_batches, 'micro-batch', 'micro-batches')} of at most "
        f"{number(training.micro_batch_tokens)} tokens{recompute_note(training)}",
    ]
    if longest + new > training.micro_batch_tokens:
        lines.append(
            f"a rollout of more than training.micro_batch_tokens = {number(training.micro_batch_tokens)} "
            f"(possible: {number(longest + new)}) is a micro-batch of its own"
        )
    return lines if sizes.branching is None else [*lines, *branching_lines(sizes.branching)]


def recompute_note(training: StepConfig) -> str:
    """Says that memory is saved at the cost of time, where it is."""
    return ", layers computed again in backward" if training.recompute else ""


def _per_batch(config: RunConfig, rollouts: int) -> str:
    if config.updates_per_step == 1:
        return "1 update"
    share = number(rollouts // config.training.mini_batches)
    passes = f" in each of {config.training.epochs} passes" if config.training.epochs > 1 else ""
    return f"{plural(config.training.mini_batches, 'update')} of {share}{passes}"


def _run(config: RunConfig, num_train: int) -> str:
    steps, prompts = config.training.steps, config.training.steps * config.rollout.prompts_per_step
    passes = f"{prompts / num_train:.2g} passes over the data"
    return f"{plural(steps, 'step')} = {number(prompts)} prompts = {passes}; seed {config.seed}"


def _evaluation(evaluation: EvaluationConfig | None) -> str:
    if evaluation is None:
        return "no evaluation: the run will not say whether the model got better"
    cut = f" of the {evaluation.top_k} likeliest tokens" if evaluation.top_k else ""
    cut += f" at top_p {evaluation.top_p:g}" if evaluation.top_p < 1 else ""
    how = f"greedy + {evaluation.samples} samples{cut}" if evaluation.samples else "greedy"
    when = f", every {plural(evaluation.every, 'step')}" if evaluation.every else ""
    return f"evaluation before and after{when}: {plural(evaluation.tasks, 'problem')}, {how} each"


def optimizer_line(optimizer: OptimizerConfig) -> str:
    """Says how weights move."""
    warmup = f", warm-up {plural(optimizer.warmup_steps, 'step')}" if optimizer.warmup_steps else ""
    decay = f", weight decay {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
    return (
        f"AdamW, learning rate {optimizer.learning_rate:g} {optimizer.schedule}{warmup}{decay}, "
        f"gradient norm at most {optimizer.max_grad_norm:g}"
    )


def files_line(folder: Path, logs: str, *, save_every: int | None) -> str:
    """Says where a run's files are and when it saves."""
    when = f"every {plural(save_every, 'step')} and at the end" if save_every else "at the end"
    return f"{visible(str(folder))}/ ({logs}, checkpoints {when})"


_SHOWN_LINES = 12


def prompt_lines(prompt: str) -> list[str]:
    """Returns a prompt line by line, made visible, line ends marked; a long one without its middle."""
    lines = [cut(line, 500, "both") for line in prompt.splitlines(keepends=True)]
    if len(lines) <= _SHOWN_LINES:
        return lines
    half = _SHOWN_LINES // 2
    left_out = plural(len(lines) - 2 * half, "more line")
    return [*lines[:half], f"... {left_out} ...", *lines[-half:]]
