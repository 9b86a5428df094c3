"""From a recipe to parts that work together: problems, a policy that can be sampled, a judge."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from turnpoint.config import (
    ChatPrompt,
    CodeVerifierConfig,
    EngineConfig,
    FewShotPrompt,
    FunctionVerifierConfig,
    MathVerifierConfig,
    ModelConfig,
    NewAdapter,
    NoVerifierConfig,
    PromptConfig,
    ReasoningGymTasks,
    ReasoningGymVerifierConfig,
    RunConfig,
    SavedAdapter,
)
from turnpoint.engine.engine import TorchEngine
from turnpoint.engine.stats import EngineStats
from turnpoint.errors import DataError, RecipeError
from turnpoint.models.adapter import Adapter, add_adapter, load_adapter, require_peft
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.models.mtp import MtpHeads
from turnpoint.models.mtp_parallel import ParallelHeads
from turnpoint.models.renderer import ChatRenderer, FewShotRenderer
from turnpoint.protocols import Renderer, Verifier
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import plural
from turnpoint.rollout.concurrency import all_of
from turnpoint.speculation import open_speculation
from turnpoint.tasks import Dataset, check_lengths, holdout, load_tasks, split_examples
from turnpoint.types import Task
from turnpoint.verifiers import CodeVerifier, FunctionVerifier, MathVerifier, ReasoningGymVerifier, Unjudged
from turnpoint.verifiers.sandbox import Isolation, Limits

_GOLD_AT_ONCE = 64  # self-checks in flight
_SMALL_MODEL = 10**9  # weights, up to which several processes sample faster than one with several threads
_MOST_WORKERS = 4
_WORKERS_PAY = 5e12  # floating-point operations of a run: about a minute of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """What a run trains and is evaluated on; no problem is in two of the three."""

    examples: tuple[tuple[str, str], ...]  # question and answer, shown in few-shot prompts
    train: Dataset
    evaluation: Dataset


def load_problems(config: RunConfig, *, trains: bool = True) -> Problems:
    """Returns the problems of `config`; raises DataError in one line when there are not enough.

    Where nothing `trains`, all may be held out.
    """
    dataset = load_tasks(config.tasks)
    examples: tuple[tuple[str, str], ...] = ()
    if isinstance(config.prompt, FewShotPrompt):
        examples, dataset = split_examples(dataset, config.prompt.shots)
    held_out = config.evaluation.tasks if config.evaluation else 0
    train, evaluation = holdout(dataset, held_out, trains=trains)
    return Problems(examples=examples, train=train, evaluation=evaluation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model as it is asked and answered: loaded once, sampled through one engine, rendered one way."""

    model: LoadedModel
    renderer: Renderer
    engine: TorchEngine
    learning: MtpHeads | ParallelHeads | None = None  # draft heads of the engine, where they learn on

    def engine_stats(self) -> EngineStats:
        """Returns what the engine has counted so far."""
        return self.engine.stats


def load_policy(
    config: RunConfig, examples: Sequence[tuple[str, str]], *, tokens: int | None = None
) -> Policy:
    """Returns the policy of `config`; raises ModelError in one line when it cannot be loaded or rendered.

    `tokens`: how many will be sampled, as many as the run of `config` samples unless it is given.
    Raises RecipeError for more workers than there are threads, ModelError as `open_speculation`, and
    EngineError as `TorchEngine` does.
    """
    model = open_model(config.model, seed=config.seed)
    renderer = make_renderer(config.prompt, model, examples, stop_strings=config.sampling.stop)
    speculation = open_speculation(config.engine.draft, model.decoder)
    engine = TorchEngine(
        model.decoder,
        decode=renderer.text,
        context_length=model.context_length,
        max_running=config.engine.max_running,
        max_step_tokens=config.engine.max_step_tokens,
        cache_tokens=config.engine.cache_tokens,
        workers=sampling_workers(config, model, tokens=config.sampled_tokens if tokens is None else tokens),
        speculation=speculation,
    )
    learning = speculation.learning if speculation else None
    return Policy(model=model, renderer=renderer, engine=engine, learning=learning)


def sampling_workers(config: RunConfig, model: LoadedModel, *, tokens: int) -> int:
    """Returns how many processes sample `tokens` tokens; see `EngineConfig.workers`."""
    branching = config.rollout.branching
    if config.engine.workers is None and branching is not None and branching.deterministic:
        return 1
    return workers_of(config.engine, model, tokens=tokens)


def workers_of(engine: EngineConfig, model: LoadedModel, *, tokens: int) -> int:
    """Returns how many processes sample `tokens` tokens; raises RecipeError for more than there are threads.

    A process per thread keeps all cores busy where most operations are too small to be divided; it takes
    seconds to start and another copy of the packed weights.
    """
    threads, cpu = torch.get_num_threads(), model.decoder.device.type == "cpu"
    if engine.workers is not None:
        if engine.workers > 1 and not cpu:
            raise RecipeError(
                f"engine.workers = {engine.workers} on {model.decoder.device}: several processes sample on "
                f"CPUs only; take engine.workers=1"
            )
        if engine.workers > threads:
            raise RecipeError(
                f"engine.workers = {engine.workers}, and torch has {plural(threads, 'thread')} here; take at "
                f"most as many, or set OMP_NUM_THREADS"
            )
        return engine.workers
    pays = 2 * model.parameters * tokens >= _WORKERS_PAY
    return min(threads, _MOST_WORKERS) if cpu and pays and model.parameters <= _SMALL_MODEL else 1


def open_model(config: ModelConfig, *, seed: int) -> LoadedModel:
    """Returns the model of `config`, its adapter in it; raises ModelError in one line when it cannot be.

    `seed` draws what a new adapter starts from.
    """
    return load_model(config.path, device=config.device, dtype=config.dtype, adapt=adapt(config, seed=seed))


def adapt(model: ModelConfig, *, seed: int) -> Callable[[Any], Adapter] | None:
    """Returns what puts the adapter of a recipe into a transformers model, for `load_model`; None without.

    Raises ModelError when there is to be one and peft is not installed.
    """
    if model.adapter is None:
        return None
    require_peft()
    match model.adapter:
        case NewAdapter() as new:
            return partial(add_adapter, rank=new.rank, alpha=new.alpha, modules=new.modules, seed=seed)
        case SavedAdapter() as saved:
            return partial(load_adapter, folder=saved.path, base=model.path)


def make_renderer(
    prompt: PromptConfig,
    model: LoadedModel,
    examples: Sequence[tuple[str, str]],
    *,
    stop_strings: tuple[str, ...] = (),
) -> ChatRenderer | FewShotRenderer:
    """Returns what turns messages into ids of `model`; raises ModelError when it has no chat template."""
    match prompt:
        case ChatPrompt() as chat:
            return ChatRenderer(
                model.tokenizer,
                thinking=chat.thinking,
                system=chat.system,
                suffix=chat.suffix,
                stop_ids=model.stop_ids,
                stop_strings=stop_strings,
            )
        case FewShotPrompt() as few_shot:
            return FewShotRenderer(
                model.tokenizer,
                examples=examples,
                template=few_shot.template,
                separator=few_shot.separator,
                stop_ids=model.stop_ids,
                stop_strings=stop_strings,
            )


ClosableVerifier: TypeAlias = MathVerifier | FunctionVerifier | ReasoningGymVerifier | CodeVerifier | Unjudged


@contextmanager
def open_verifier(config: RunConfig) -> Generator[Verifier]:
    """Yields the judge of `config`; its worker processes end with the block."""
    with _verifier(config) as verifier:
        yield verifier


def _verifier(config: RunConfig) -> ClosableVerifier:
    match config.verifier:
        case MathVerifierConfig() as math:
            return MathVerifier(timeout=math.timeout, workers=math.workers)
        case FunctionVerifierConfig() as function:
            return FunctionVerifier(function.path)
        case CodeVerifierConfig() as code:
            return CodeVerifier(
                reward=code.reward,
                most=code.max_tests,
                choose=code.choose,
                tolerance=code.tolerance,
                checker=code.checker,
                limits=Limits(wall=code.timeout, cpu=code.timeout, memory_bytes=code.memory_mb << 20),
                workers=code.workers,
                isolation=Isolation(code.isolation),
            )
        case NoVerifierConfig():
            return Unjudged()
        case ReasoningGymVerifierConfig():
            if not isinstance(config.tasks, ReasoningGymTasks):
                raise RecipeError(f"verifier.kind = reasoning_gym cannot score {config.tasks.kind} tasks")
            return ReasoningGymVerifier(config.tasks.name)


def fit_context(
    dataset: Dataset, policy: Policy, max_new_tokens: int
) -> tuple[Dataset, list[int], list[str]]:
    """Returns the tasks whose prompts leave room for the completion, their lengths, and what was dropped.

    Lengths are of the ids that will be sent. Raises DataError when none fits.
    """
    lengths = [len(policy.renderer.prompt(task.messages)) for task in dataset.tasks]
    check = check_lengths(lengths, context=policy.model.context_length, max_new_tokens=max_new_tokens)
    kept = dataset.select(check.kept)
    return kept, [lengths[index] for index in check.kept], [check.warning] if check.warning else []


async def check_gold(
    dataset: Dataset, verifier: Verifier, terminal: Terminal
) -> tuple[Dataset, list[str], list[float]]:
    """Returns the tasks whose gold answer the verifier accepts, what was left out, with a reason, and the
    rewards of the gold answers that are accepted.

    Raises DataError when none is left.
    """
    refused: dict[str, list[Task]] = {}
    kept: list[int] = []
    rewards: list[float] = []
    with terminal.phase("checking gold answers", len(dataset.tasks)) as phase:
        for start in range(0, len(dataset.tasks), _GOLD_AT_ONCE):
            block = dataset.tasks[start : start + _GOLD_AT_ONCE]
            verdicts = await all_of(verifier.self_check(task) for task in block)
            for offset, (task, verdict) in enumerate(zip(block, verdicts, strict=True)):
                if verdict.reward is not None:
                    kept.append(start + offset)
                    rewards.append(verdict.reward)
                else:
                    refused.setdefault(verdict.reason, []).append(task)
            phase.advance(len(block))
    lines = [
        f"{len(tasks)} of {len(dataset.tasks)} left out: {reason} "
        f"(first: {tasks[0].id}, gold {reprlib.repr(tasks[0].answer)})"
        for reason, tasks in refused.items()
    ]
    if not kept:
        raise DataError(f"{dataset.name}: the verifier accepts none of the gold answers; {lines[0]}")
    return dataset.select(kept), lines, rewards
